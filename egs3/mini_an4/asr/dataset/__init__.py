"""The corpus of this recipe: the builder makes Kaldi directories, which espnet3's source reads."""

# Relative, since the package has another name when another recipe uses it.
from .builder import DatasetBuilder

__all__ = ["DatasetBuilder"]
