"""Failures of ranks, and signals that end a training."""
