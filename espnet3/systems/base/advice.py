"""What to write for a key that a stage does not read; the words are in `config.words`."""

from espnet3.config.advice import Advice, advise
from espnet3.config.own_keys import BLOCK_HOMES, HOMES

__all__ = ["BLOCK_HOMES", "HOMES", "Advice", "advise"]
