"""Training with PyTorch Lightning; it knows nothing of the `parallel` block."""
