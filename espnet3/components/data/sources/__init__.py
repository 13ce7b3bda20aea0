"""Datasets that need no code: each module exports a `Dataset`, and `data_src` names it."""
