"""Optimizers of a training."""
