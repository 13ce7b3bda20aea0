"""The speech that this recipe decodes."""

# Relative, since the package has another name when another recipe uses it.
from .builder import DatasetBuilder
from .dataset import Dataset

__all__ = ["Dataset", "DatasetBuilder"]
