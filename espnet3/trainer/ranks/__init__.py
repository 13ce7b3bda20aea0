"""Ranks that die, and signals that end a training."""
