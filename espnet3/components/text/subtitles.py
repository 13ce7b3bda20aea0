"""Timed words as files that other programs read: SubRip, WebVTT, CTM and Praat's TextGrid."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

# What readers can follow: two lines of television, a few seconds, and a new one after a pause.
_MAX_CHARACTERS = 84
_MAX_LINE = 42
_MAX_SECONDS = 7.0
_PAUSE_SECONDS = 0.8
# A caption of one short word would only flash by.
_MIN_SECONDS = 0.7


class TimedWord(Protocol):
    """A word and when it was said, in seconds from the begin of the audio."""

    @property
    def word(self) -> str: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...
    @property
    def confidence(self) -> float: ...


@dataclass(frozen=True)
class Caption:
    """Text that is shown at one time."""

    start: float
    end: float
    text: str


def captions(words: Sequence[TimedWord]) -> list[Caption]:
    """Group words into captions: a new one after a pause, after 7 s, and after two full lines."""
    groups: list[list[TimedWord]] = []
    for word in words:
        if groups and _fits(groups[-1], word):
            groups[-1].append(word)
        else:
            groups.append([word])
    following = [group[0].start for group in groups[1:]] + [float("inf")]
    return [_caption(group, before) for group, before in zip(groups, following, strict=False)]


def _fits(group: Sequence[TimedWord], word: TimedWord) -> bool:
    n_characters = sum(len(one.word) + 1 for one in group) + len(word.word)
    is_near = word.start - group[-1].end < _PAUSE_SECONDS
    return is_near and n_characters <= _MAX_CHARACTERS and word.end - group[0].start <= _MAX_SECONDS


def _caption(group: Sequence[TimedWord], before: float) -> Caption:
    start = group[0].start
    end = min(max(group[-1].end, start + _MIN_SECONDS), max(before, group[-1].end))
    return Caption(start, end, _in_lines([one.word for one in group]))


def _in_lines(words: Sequence[str]) -> str:
    """Break a caption where its two lines are most alike in length."""
    text = " ".join(words)
    if len(text) <= _MAX_LINE:
        return text
    breaks = [len(" ".join(words[:n])) for n in range(1, len(words))]
    if not breaks:
        return text
    place = min(breaks, key=lambda at: abs(2 * at - len(text)))
    return f"{text[:place]}\n{text[place + 1 :]}"


def format_srt(words: Sequence[TimedWord]) -> str:
    """Return subtitles as SubRip.

    Example:
        >>> from espnet3.components.decoding.alignment import Word
        >>> print(format_srt([Word("hello", 0.5, 1.5, 1.0)]), end="")
        1
        00:00:00,500 --> 00:00:01,500
        hello
    """
    blocks = [
        f"{number}\n{_clock(one.start, ',')} --> {_clock(one.end, ',')}\n{one.text}\n"
        for number, one in enumerate(captions(words), 1)
    ]
    return "\n".join(blocks)


def format_vtt(words: Sequence[TimedWord]) -> str:
    """Return subtitles as WebVTT."""
    blocks = [
        f"{_clock(one.start, '.')} --> {_clock(one.end, '.')}\n{_escaped(one.text)}\n"
        for one in captions(words)
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _clock(seconds: float, point: str) -> str:
    milliseconds = round(max(seconds, 0.0) * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest // 1000:02}{point}{rest % 1000:03}"


def format_ctm(id: str, words: Sequence[TimedWord]) -> str:
    """Return the lines of an utterance as NIST's CTM: id, channel, begin, length, word, confidence.

    Example:
        >>> from espnet3.components.decoding.alignment import Word
        >>> print(format_ctm("a", [Word("hello", 0.5, 1.5, 0.25)]), end="")
        a 1 0.50 1.00 hello 0.25
    """
    return "".join(
        f"{id} 1 {one.start:.2f} {one.end - one.start:.2f} {one.word} {one.confidence:.2f}\n"
        for one in words
    )


def format_textgrid(words: Sequence[TimedWord], seconds: float) -> str:
    """Return a TextGrid with one tier, `words`, whose pauses are empty intervals.

    Args:
        words: In the order in which they were said.
        seconds: Length of the audio.
    """
    intervals = list(_intervals(words, seconds))
    end = intervals[-1][1]
    lines = [
        'File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {end:g}",
        "tiers? <exists>", "size = 1", "item []:", "    item [1]:",
        '        class = "IntervalTier"', '        name = "words"', "        xmin = 0",
        f"        xmax = {end:g}", f"        intervals: size = {len(intervals)}",
    ]  # fmt: skip
    for number, (begin, stop, text) in enumerate(intervals, 1):
        quoted = text.replace('"', '""')
        lines += [
            f"        intervals [{number}]:",
            f"            xmin = {begin:g}",
            f"            xmax = {stop:g}",
            f'            text = "{quoted}"',
        ]
    return "\n".join([*lines, ""])


def _intervals(words: Sequence[TimedWord], seconds: float) -> Iterator[tuple[float, float, str]]:
    """Yield begin, end and text without gaps or overlaps, as Praat demands."""
    # The ends of the audio, and of CTC's words, are rounded differently: the words decide.
    last = max([seconds, *(one.end for one in words)])
    position = 0.0
    following = [*(one.start for _, one in pairwise(words)), last]
    for word, limit in zip(words, following, strict=False):
        begin, end = max(word.start, position), min(word.end, max(limit, word.start))
        if begin > position:
            yield position, begin, ""
        if end > begin:
            yield begin, end, word.word
            position = end
    if last > position or not words:
        yield position, last, ""
