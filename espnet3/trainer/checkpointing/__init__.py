"""Checkpoints: what they hold, which are kept, averages, and going on from them."""
