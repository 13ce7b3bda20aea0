"""Systems: the stages of a recipe, and what they are made of."""
