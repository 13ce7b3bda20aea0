"""Older path of `espnet3.parallel.base_runner`."""

from espnet3.parallel.base_runner import BaseRunner

__all__ = ["BaseRunner"]
