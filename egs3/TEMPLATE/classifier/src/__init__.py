"""The code of this recipe."""
