"""Older path of `join_scp`, which runners of users import from here."""

from espnet3.shards.merge import join_scp

__all__ = ["join_scp"]
