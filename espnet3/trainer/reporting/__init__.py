"""What people see of a training: progress, metrics, history, curves."""
