"""The corpus of this recipe: the builder makes manifests, which espnet3's own source reads."""

# Relative, since the package has another name when another recipe uses it.
from .builder import DatasetBuilder

__all__ = ["DatasetBuilder"]
