"""Older path of `dump_json`, which dataset builders of users import from here."""

from espnet3.io.atomic import dump_json

__all__ = ["dump_json"]
