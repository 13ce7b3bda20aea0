"""Parts that systems are made of: data, models, metrics."""
