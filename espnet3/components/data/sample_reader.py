"""Read the samples of a batch, in a worker process or in our own, and say what went wrong."""

import os
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from espnet3.components.data.collate import CollateFn
from espnet3.components.data.dataset import (
    global_rngs_kept,
    place_of,
    sample_of,
    sample_rng,
    uses_rng,
)
from espnet3.components.data.errors import DataError
from espnet3.errors import EspnetError

if TYPE_CHECKING:
    from espnet3.components.data.dataset import Ints

Request = tuple[int, "Ints"]
"""The number of an epoch, and tickets."""

# Where a whole batch cannot be read, so many other samples are tried: each rank needs a batch.
_N_SUBSTITUTES = 100


class ReaderTraceback(Exception):
    """The traceback of an error in a worker process, as text, for the log."""


@dataclass(frozen=True)
class SampleFailure:
    """A sample or a batch that could not be made; crosses processes, so it holds no exception."""

    place: str
    message: str
    kind: type[EspnetError] = DataError
    cause: Exception | None = None
    """Where it happened in this process."""
    trace: str = ""
    """The same as text, if it was in another one."""
    is_of_batch: bool = False
    """Whether the samples were read, but do not make a batch; leaving one out would not help."""

    @classmethod
    def of(cls, error: Exception, place: str, *, is_of_batch: bool = False) -> "SampleFailure":
        """Describe an error: ours by its message, others with the line of code as well."""
        if isinstance(error, EspnetError):
            return cls(place, str(error), type(error), error, is_of_batch=is_of_batch)
        trace = "".join(traceback.format_exception(error))
        message = f"{type(error).__name__}: {error}{_line_of(error)}."
        return cls(place, message, DataError, error, trace, is_of_batch)

    @property
    def summary(self) -> str:
        """Return a line that names the sample and the error."""
        return f"{self.place}: {self.message.splitlines()[0] if self.message else ''}"

    def as_error(self, advice: str) -> EspnetError:
        """Return the error to raise, with the original one as its cause."""
        advice = f" {advice}" if advice and not self.is_of_batch else ""
        error = self.kind(f"{self.place}: {self.message}{advice}")
        error.__cause__ = self.cause or (ReaderTraceback(f"\n{self.trace}") if self.trace else None)
        return error


def _line_of(error: Exception) -> str:
    """Return the innermost line of the recipe that led to an error, or that which raised it."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    if not frames:
        return ""
    here = os.getcwd() + os.sep
    frame = next((f for f in reversed(frames) if f.filename.startswith(here)), frames[-1])
    return f" ({frame.filename.removeprefix(here)}:{frame.lineno}, in {frame.name})"


@dataclass(frozen=True)
class Fetched:
    """A batch, and what was read for it."""

    batch: Any
    tickets: list[int]
    seconds: list[float] | None
    """Of each sample, if all of them have it."""
    failures: list[SampleFailure]

    def pin_memory(self) -> "Fetched":
        """Put the batch where a GPU can fetch it quickly; torch calls this."""
        from torch.utils.data._utils.pin_memory import pin_memory

        return replace(self, batch=pin_memory(self.batch))  # type: ignore[no-untyped-call]


class SampleReader:
    """What torch's DataLoader takes for a dataset: it answers a `Request` with a `Fetched`.

    Errors are part of the answer, because torch would bury them under the frames of a worker.

    Args:
        dataset: Where the samples are.
        collate_fn: Makes a batch of a list of them.
        seed: Of the experiment.
        seconds: Of each item, for samples that do not have it.
        is_fixed: Random choices are the same in each epoch, so that its scores can be compared.
        skip: Continue without samples that cannot be read.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: CollateFn,
        *,
        seed: int,
        seconds: Any = None,
        skip: bool = False,
        is_fixed: bool = False,
    ) -> None:
        self.dataset = dataset
        self.collate_fn = collate_fn
        self.seed = seed
        self.seconds = seconds
        self.skip = skip
        self.is_fixed = is_fixed
        self._is_random = uses_rng(dataset)

    def __getitems__(self, request: Request) -> "Fetched | SampleFailure":
        epoch, tickets = request
        epoch = 0 if self.is_fixed else epoch
        with global_rngs_kept() as seed:
            # For code of the user that draws from global generators.
            seed(self.seed, epoch, int(tickets[0]))
            answer = self._fetch(epoch, [int(ticket) for ticket in tickets])
        return answer if _in_main_process() else _sendable(answer)

    def _fetch(self, epoch: int, tickets: list[int]) -> "Fetched | SampleFailure":
        samples, read, failures = self._read(epoch, tickets)
        if failures and not self.skip:
            return failures[0]
        n_items = len(self.dataset)
        following = (tickets[-1] + i for i in range(1, min(n_items, _N_SUBSTITUTES) + 1))
        while not samples and (other := next(following, None)) is not None:
            samples, read, more = self._read(epoch, [other % n_items])
            failures += more
        if not samples:
            last = failures[-1]
            return replace(last, place=f"A whole batch and what follows it, up to {last.place}")
        try:
            batch = self.collate_fn(samples)
        except Exception as error:
            names = ", ".join(self._place(ticket) for ticket in read[:2])
            rest = ", ..." if len(read) > 2 else ""
            return SampleFailure.of(error, f"The batch of {names}{rest}", is_of_batch=True)
        return Fetched(batch, read, self._seconds(samples, read), failures)

    def _read(
        self, epoch: int, tickets: list[int]
    ) -> tuple[list[Any], list[int], list[SampleFailure]]:
        samples, read, failures = [], [], []
        for ticket in tickets:
            try:
                samples.append(self._sample(epoch, ticket))
                read.append(ticket)
            except MemoryError:
                raise
            except Exception as error:
                failures.append(SampleFailure.of(error, self._place(ticket)))
                if not self.skip:
                    break
        return samples, read, failures

    def _sample(self, epoch: int, ticket: int) -> Any:
        copy, index = divmod(ticket, len(self.dataset))
        if not self._is_random:
            return self.dataset[index]
        return sample_of(self.dataset, index, sample_rng(self.seed, epoch, index, copy))

    def _place(self, ticket: int) -> str:
        return place_of(self.dataset, ticket % len(self.dataset))

    def _seconds(self, samples: list[Any], tickets: list[int]) -> list[float] | None:
        """Return what the samples say, which transforms may have changed, else what was known."""
        known = [_seconds_of(sample) for sample in samples]
        if all(seconds is not None for seconds in known):
            return [seconds for seconds in known if seconds is not None]
        if self.seconds is None:
            return None
        return [float(self.seconds[ticket % len(self.dataset)]) for ticket in tickets]


def as_is(fetched: "Fetched | SampleFailure") -> "Fetched | SampleFailure":
    """Stand for the collate function of torch: the reader has made the batch already."""
    return fetched


def _seconds_of(sample: Any) -> float | None:
    if not isinstance(sample, Mapping):
        return None
    speech: Any = sample.get("speech")
    rate = sample.get("sample_rate")
    if isinstance(rate, int | float) and rate > 0 and hasattr(speech, "__len__"):
        return len(speech) / rate
    return None


def _in_main_process() -> bool:
    from torch.utils.data import get_worker_info

    return get_worker_info() is None


def _sendable(answer: "Fetched | SampleFailure") -> "Fetched | SampleFailure":
    if isinstance(answer, SampleFailure):
        return replace(answer, cause=None)
    return replace(answer, failures=[replace(failure, cause=None) for failure in answer.failures])
