"""The data of this recipe; espnet3 looks for these two names."""

# Relative, since the package has another name when another recipe uses it.
from .builder import DatasetBuilder
from .dataset import Dataset

__all__ = ["Dataset", "DatasetBuilder"]
