"""CTC beam search over the words of a lexicon, with a word n-gram, by flashlight-text."""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from espnet3.components.decoding.hypothesis import Hypothesis
from espnet3.components.decoding.ngram import BEGIN, END, UNKNOWN_WORD, NGram
from espnet3.components.text.tokenizer import BLANK, SPACE_TOKEN, UNKNOWN, Tokenizer, load_tokenizer
from espnet3.config.trust import checked_path
from espnet3.errors import ConfigError, MissingExtraError

_IMPOSSIBLE = -1e30
_NOT_WORDS = (BEGIN, END, UNKNOWN_WORD)


class LexiconCTC:
    """Finds the best sequences of words from a lexicon.

    A word is spelled by the tokens of the tokenizer, which must be one of characters: a word ends
    with `<space>` or the end of the utterance. A word outside the lexicon cannot come out.
    The score is `ctc + lm_weight * ngram + word_score * n_words`, and `space_score`.
    An utterance is decoded alone, so that a batch gives what its utterances give.

    Args:
        tokenizer: Folder of a character tokenizer.
        lexicon: A file with a word a line (what follows a blank is ignored), or a list of words;
            None for the words of the n-gram.
        ngram: An ARPA file of words, plain or .gz, or an `NGram`; None for none.
        n_best: Hypotheses returned, at most.
        beam_size: Hypotheses kept after each frame.
        beam_size_token: Tokens that count in each frame, the most likely ones.
        beam_threshold: Hypotheses worse than the best of a frame by more than this are dropped.
        lm_weight: Of the n-gram's log-probability.
        word_score: Added for each word; makes up for the n-gram's liking of short texts.
        space_score: Added for each frame whose token is the space.
        log_add: Add up the paths of the same words; else the best path counts.

    Raises:
        MissingExtraError: flashlight-text is not installed.
        ConfigError: there are no words, a word cannot be spelled, or a number is out of range.
    """

    def __init__(  # noqa: PLR0913 - the settings that users know by these names
        self,
        tokenizer: str | Path,
        lexicon: str | Path | Sequence[str] | None = None,
        ngram: str | Path | NGram | None = None,
        n_best: int = 1,
        *,
        beam_size: int = 50,
        beam_size_token: int = 30,
        beam_threshold: float = 50.0,
        lm_weight: float = 0.5,
        word_score: float = 0.0,
        space_score: float = 0.0,
        log_add: bool = False,
    ) -> None:
        counts = {"n_best": n_best, "beam_size": beam_size, "beam_size_token": beam_size_token}
        for name, value in counts.items():
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"decoder.{name} is {value}, but must be 1 or more: {name}: 50")
        self._library = _flashlight()
        self.n_best = n_best
        self.beam_size = beam_size
        self._space_score = space_score
        self._tokenizer = load_tokenizer(tokenizer)
        if SPACE_TOKEN not in self._tokenizer.tokens:
            raise ConfigError(
                f"decoder.tokenizer {tokenizer} has no {SPACE_TOKEN}, where words of a lexicon "
                "end.",
                fix="Use a character tokenizer, or an n-gram over tokens: _target_: "
                "espnet3.components.decoding.ctc_beam.PrefixBeamCTC",
            )
        self._space = self._tokenizer.tokens.index(SPACE_TOKEN)
        self._ngram = NGram.read(ngram) if isinstance(ngram, str | Path) else ngram
        self.words = _words_of(lexicon, self._ngram)
        # The decoder keeps no reference of its own to what Python gave it.
        self._model = self._make_model()
        self._trie = self._make_trie()
        self._decoder = self._make_decoder(
            beam_size=beam_size,
            beam_size_token=beam_size_token,
            beam_threshold=beam_threshold,
            lm_weight=lm_weight,
            word_score=word_score,
            sil_score=space_score,
            log_add=log_add,
        )
        # The library's search, and the contexts of the n-gram, are of one utterance at a time.
        self._lock = threading.Lock()

    def __call__(self, model: Any, encoded: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Return the n-best of each utterance, best first; see `GreedyCTC`."""
        with torch.inference_mode():
            return self.decode(model.ctc_log_probs(encoded), lengths)

    def decode(self, log_probs: Tensor, lengths: Tensor) -> list[list[Hypothesis]]:
        """Decode posteriors [B, T, V] of `lengths` frames each."""
        # Under autocast these may be bfloat16, which NumPy does not have.
        rows = log_probs.float().cpu().numpy()
        with self._lock:
            return [
                self._decode_one(row[:n]) for row, n in zip(rows, lengths.tolist(), strict=True)
            ]

    def _decode_one(self, log_probs: np.ndarray[Any, Any]) -> list[Hypothesis]:
        # A frame of certain space at the end lets the last word end as all others do.
        last = np.full((1, log_probs.shape[1]), _IMPOSSIBLE)
        last[0, self._space] = -self._space_score
        # The library gets a bare pointer, so it relies on this type and memory layout.
        frames = np.ascontiguousarray(np.concatenate([log_probs, last]), dtype=np.float32)
        frames = np.maximum(frames, _IMPOSSIBLE, out=frames)
        found: dict[tuple[int, ...], Any] = {}
        for result in self._decoder.decode(frames.ctypes.data, *frames.shape):
            # Impossible paths have finite scores too; nothing real comes near half of that.
            if result.score > _IMPOSSIBLE / 2:
                found.setdefault(tuple(word for word in result.words if word >= 0), result)
        # The order of ties is that of addresses in memory: sorted, it is always the same.
        ranked = sorted(found.items(), key=lambda item: (-item[1].score, item[0]))[: self.n_best]
        best = [self._hypothesis(words, result) for words, result in ranked]
        return best or [Hypothesis((), float("-inf"))]

    def _hypothesis(self, words: tuple[int, ...], result: Any) -> Hypothesis:
        text = " ".join(self.words[word] for word in words)
        parts = {"ctc": float(result.emittingModelScore)}
        if self._ngram is not None:
            parts["ngram"] = self._ngram.log_prob(text.split())
        return Hypothesis(tuple(self._tokenizer.encode(text)), float(result.score), parts)

    def _make_model(self) -> Any:
        if self._ngram is None:
            return self._library.ZeroLM()
        return _word_model(self._library, self._ngram, self.words)

    def _make_trie(self) -> Any:
        trie = self._library.Trie(len(self._tokenizer.tokens), self._space)
        start = self._model.start(False)
        for i, word in enumerate(self.words):
            _, score = self._model.score(start, i)
            trie.insert([*_spelling(word, self._tokenizer), self._space], i, score)
        # A word's score counts as soon as its first letters tell it from others.
        trie.smear(self._library.SmearingMode.MAX)
        return trie

    def _make_decoder(self, **settings: Any) -> Any:
        options = self._library.LexiconDecoderOptions(
            **settings,
            unk_score=float("-inf"),
            criterion_type=self._library.CriterionType.CTC,
        )
        unknown_word = -1
        return self._library.LexiconDecoder(
            options, self._trie, self._model, self._space, BLANK, unknown_word, [], False
        )


def _word_model(library: Any, ngram: NGram, words: Sequence[str]) -> Any:
    """Return an n-gram as flashlight-text asks for it."""
    ids = [ngram.word_id(word) for word in words]

    class WordModel(library.LM):
        """Keeps the n-gram's context of each state; states are the library's."""

        def __init__(self) -> None:
            super().__init__()
            self.contexts: dict[Any, Any] = {}

        def start(self, start_with_nothing: bool) -> Any:
            # What the utterance before reached is not needed any more.
            state = library.LMState()
            self.contexts = {state: ngram.start()}
            return state

        def score(self, state: Any, word: int) -> tuple[Any, float]:
            context = self.contexts[state]
            after = state.child(word)
            if after not in self.contexts:
                self.contexts[after] = ngram.advance(context, ids[word])
            return after, ngram.score_id(context, ids[word])

        def finish(self, state: Any) -> tuple[Any, float]:
            return state, ngram.finish(self.contexts[state])

    return WordModel()


def _flashlight() -> Any:
    try:
        from flashlight.lib.text import decoder
    except ImportError as error:
        raise MissingExtraError(
            "decoder is LexiconCTC, which needs the package 'flashlight-text', and that cannot be "
            f"imported ({error}).",
            fix="In your clone of ESPnet3: pip install -c constraints.txt -e '.[ngram]'",
        ) from error
    return decoder


def _words_of(lexicon: str | Path | Sequence[str] | None, ngram: NGram | None) -> tuple[str, ...]:
    if lexicon is None:
        words = () if ngram is None else ngram.words
    elif isinstance(lexicon, str | Path):
        if not checked_path(lexicon).is_file():
            raise ConfigError(
                f"decoder.lexicon {lexicon} does not exist.",
                fix="Write a file with a word a line, or leave it out for the words of the n-gram.",
            )
        words = _read_words(Path(lexicon))
    else:
        words = tuple(lexicon)
        # YAML reads an unquoted yes, no, on or off as a boolean, and digits as a number.
        odd = next((word for word in words if not isinstance(word, str)), None)
        if odd is not None:
            raise ConfigError(
                f"decoder.lexicon has {odd!r}, which YAML does not read as a text.",
                fix=f'Quote such words: lexicon: ["{str(odd).lower()}", ...]',
            )
    found = tuple(dict.fromkeys(word for word in words if word not in _NOT_WORDS))
    if not found:
        raise ConfigError(
            "LexiconCTC has no words.", fix="Add to the decoder: lexicon: data/words.txt"
        )
    return found


def _read_words(file: Path) -> tuple[str, ...]:
    try:
        # A byte order mark, as Windows editors write it, would become part of the first word.
        lines = file.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"decoder.lexicon {file} is not in UTF-8 ({error}).",
            fix=f"Convert it, for example from Latin-1: iconv -f LATIN1 -t UTF-8 {file}",
        ) from error
    return tuple(line.split()[0] for line in lines if line.strip())


def _spelling(word: str, tokenizer: Tokenizer) -> list[int]:
    ids = tokenizer.encode(word)
    if not ids or UNKNOWN in ids:
        raise ConfigError(
            f"The word {word!r} of the lexicon cannot be spelled with the tokens of the tokenizer.",
            fix="Remove it there, or train the tokenizer on texts that have its letters.",
        )
    return ids
