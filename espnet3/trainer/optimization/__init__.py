"""The optimizers of a training: what they update, when, and how."""
