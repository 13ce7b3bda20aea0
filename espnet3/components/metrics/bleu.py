"""BLEU, as sacreBLEU computes it."""

import importlib.util
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from espnet3.components.metrics.error_rate import check_setting
from espnet3.components.metrics.set_score import Data, Rows, UtteranceScore
from espnet3.errors import ConfigError, MissingExtraError, suggest

_ORDER = 4
_SMOOTH = ("exp", "floor", "add-k", "none")


@dataclass(frozen=True)
class BLEU(UtteranceScore):
    """BLEU of translations: precision of 1- to 4-grams with a brevity penalty, 0 to 100.

    The number is that of the package `sacrebleu` (extra `bleu`), and `signature` says how it was
    computed, to be quoted with it. Several fields as `ref_key` are several references of each
    utterance. The arguments are those of `UtteranceScore`, and those below.
    """

    key: ClassVar[str] = "bleu"

    tokenize: str = "13a"
    """Tokenizer of sacreBLEU: `13a`, `intl`, `char`, `zh`, `none`, ...; some need more packages."""
    lowercase: bool = False
    """Ignore case."""
    smooth_method: str = "exp"
    """What becomes of orders without a match: `exp`, `floor`, `add-k` or `none`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_setting("lowercase", self.lowercase, lambda value: isinstance(value, bool), "true")
        check_setting("smooth_method", self.smooth_method, _SMOOTH.__contains__, "exp")
        check_setting("hyp_key", self.hyp_key, lambda key: isinstance(key, str), "hyp")
        if importlib.util.find_spec("sacrebleu") is None:
            raise MissingExtraError(
                "BLEU needs the package 'sacrebleu', which is not installed.",
                fix="In your clone of ESPnet3: pip install -c constraints.txt -e '.[bleu]'",
            )
        self._scorer  # noqa: B018  # a wrong tokenizer is an error now, not after hours

    def rows(self, data: Data, folder: Path) -> Rows:
        """Return for each utterance: matches by order, n-grams by order, both lengths."""
        hypotheses, references = data[self.estimates[0]], [data[key] for key in self.references]
        rows = np.zeros((len(hypotheses), 2 * _ORDER + 2))
        for number, hypothesis in enumerate(hypotheses):
            found = self._scorer.sentence_score(hypothesis, [texts[number] for texts in references])
            rows[number] = (*found.counts, *found.totals, found.sys_len, found.ref_len)
        return rows

    def score(self, sums: NDArray[np.float64]) -> float:
        """Return the BLEU of a sum of rows."""
        return float(self._computed(sums).score)

    def of_utterance(self, row: NDArray[np.float64]) -> dict[str, Any]:
        """Return the BLEU of a sentence, over the orders that it has."""
        return {self.key: float(self._computed(row, effective_order=True).score)}

    def of_set(self, sums: NDArray[np.float64]) -> dict[str, Any]:
        """Return what the score is made of, and how it was computed."""
        found = self._computed(sums)
        return {
            "brevity_penalty": float(found.bp),
            **{f"precision_{n}": float(value) for n, value in enumerate(found.precisions, 1)},
            "hyp_length": int(found.sys_len),
            "ref_length": int(found.ref_len),
            "signature": self._signature(),
        }

    def _computed(self, sums: NDArray[np.float64], *, effective_order: bool = False) -> Any:
        from sacrebleu.metrics.bleu import BLEU as Sacre

        counts = [round(value) for value in sums.tolist()]
        hyp_length, ref_length = counts[2 * _ORDER :]
        return Sacre.compute_bleu(
            counts[:_ORDER],
            counts[_ORDER : 2 * _ORDER],
            hyp_length,
            ref_length,
            smooth_method=self.smooth_method,
            effective_order=effective_order,
        )

    def _signature(self) -> str:
        # sacreBLEU knows the number of references once it has scored something.
        scorer = self._build(effective_order=False)
        scorer.corpus_score(["a"], [["a"]] * len(self.references))
        return str(scorer.get_signature())

    @cached_property
    def _scorer(self) -> Any:
        # Counts do not depend on the order; without it, sacreBLEU warns about short sentences.
        return self._build(effective_order=True)

    def _build(self, *, effective_order: bool) -> Any:
        from sacrebleu.metrics.bleu import BLEU as Sacre

        if self.tokenize not in Sacre.TOKENIZERS:
            raise ConfigError(
                f"tokenize is {self.tokenize!r}, but must be one of {', '.join(Sacre.TOKENIZERS)}.",
                fix=f"{suggest(str(self.tokenize), Sacre.TOKENIZERS)} Write: tokenize: 13a".strip(),
            )
        try:
            return Sacre(
                lowercase=self.lowercase,
                tokenize=self.tokenize,
                smooth_method=self.smooth_method,
                effective_order=effective_order,
            )
        except (RuntimeError, ImportError) as error:  # it names the package that is missing
            raise MissingExtraError(
                f"tokenize is {self.tokenize!r}: {' '.join(str(error).split())}",
                fix="Install it, or write: tokenize: 13a",
            ) from error
