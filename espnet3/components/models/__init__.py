"""The contract of a model, and parts that models are made of."""
