"""Older import paths of the parallel layer: the same objects."""
