"""Reports of a training: progress, metrics, history, curves, loggers."""
