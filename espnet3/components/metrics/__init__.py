"""Metrics: error counts, their confidence intervals, and aligned texts."""
