"""Texts as numbers: tokenizers, and what their tokens mean."""
