"""Older path of `join_files`, which runners of users import from here."""

from espnet3.shards.merge import join_files

__all__ = ["join_files"]
