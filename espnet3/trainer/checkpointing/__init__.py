"""Checkpoints: what they hold, which are kept, averages, and resuming from them."""
