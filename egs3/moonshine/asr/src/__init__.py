"""The model of this recipe."""
