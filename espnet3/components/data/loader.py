"""The loader of one split: batches for this rank, read by worker processes, resumable mid-epoch."""

import atexit
import logging
import os
import re
import signal
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from espnet3.components.data.batch_sampler import EpochSampler
from espnet3.components.data.collate import CollateFn
from espnet3.components.data.dataset import place_of, sample_of, uses_rng
from espnet3.components.data.errors import DataError
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.loader_plan import LengthSource, make_plan
from espnet3.components.data.random_numbers import (
    global_rngs_kept,
    sample_rng,
    seed_each,
    seeds_of,
)
from espnet3.config.instantiate import build_function
from espnet3.errors import EspnetError, ResourceError

if TYPE_CHECKING:
    from espnet3.components.data.dataset import Ints

logger = logging.getLogger(__name__)

Request = tuple[int, "Ints", tuple[int, ...]]
"""The number of an epoch, tickets, and seeds of the global random generators."""

# Where a whole batch cannot be read, so many other samples are tried: each rank needs a batch.
_N_SUBSTITUTES = 100
_N_SEEDED = 64


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
    # Frames of this file are part of every such error, and tell nothing about it.
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
    """Dataset for torch's DataLoader: answers a `Request` with a `Fetched`.

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
        epoch, tickets, seeds = request
        epoch = 0 if self.is_fixed else epoch
        with global_rngs_kept():
            # For code of the user that draws from global generators.
            seed_each(seeds)
            answer = self._fetch(epoch, [int(ticket) for ticket in tickets])
        return answer if _in_main_process() else _sendable(answer)

    def seeds(self, epoch: int, tickets: "Ints") -> tuple[int, ...]:
        """Return the seeds of the global random generators for a batch."""
        return seeds_of(self.seed, 0 if self.is_fixed else epoch, int(tickets[0]))

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
            # Not the fault of a sample: skipping it would only hide that memory is short.
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


GRACE_SECONDS = 30
"""In which the training saves and stops its workers itself."""


@dataclass(frozen=True)
class BatchInfo:
    """Facts of a batch of this rank."""

    n_samples: int
    seconds: float | None
    """Audio in it, without padding."""
    padded_seconds: float | None
    """The longest sample, times their number."""
    wait_seconds: float
    """How long training had to wait for it."""
    indices: tuple[int, ...]
    """Of the samples in the dataset."""


class BatchLoader:
    """Gives the batches of this rank, epoch after epoch.

    It is no `torch.utils.data.DataLoader`, but has one inside: Lightning leaves it as it is, and
    stores and restores its `state_dict`.

    Args:
        reader: Reads the samples.
        sampler: Knows which are next; `sampler.set_epoch(epoch)` chooses the epoch.
        config: Workers, and what to do about samples that cannot be read.
        worker_init_fn: Called in each worker with its number.
        key: What errors call us.
    """

    def __init__(
        self,
        reader: SampleReader,
        sampler: EpochSampler,
        config: LoaderConfig,
        *,
        worker_init_fn: Any = None,
        key: str = "dataloader.train",
    ) -> None:
        self.sampler = sampler
        self.last_batch: BatchInfo | None = None
        self.key = key
        self.n_errors = 0
        self._reader = reader
        self._config = config
        self._worker_init_fn = worker_init_fn
        self._feed = _Feed(reader)
        self._inner: Any = None

    # Lightning looks at it to find out whether a loader is shuffled.
    batch_sampler = None

    def __len__(self) -> int:
        """Return the steps of this rank in the whole epoch, also after a resume in its middle."""
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator that does nothing until it is asked for the first batch."""
        return _BatchIterator(self)

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the epoch, as plain values, the same on all ranks."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume with the batch after the last one that was yielded when the state was taken."""
        self.sampler.load_state_dict(state)

    def close(self, *, at_once: bool = False) -> None:
        """End the worker processes; the next iteration starts others.

        Args:
            at_once: Do not wait for what they are doing, which may hang.
        """
        iterator = getattr(self._inner, "_iterator", None)
        # First, so that a shutdown that fails leaves nothing for the next iteration to reuse.
        self._inner = None
        if iterator is not None and self._config.num_workers:
            if at_once:
                kill_workers(iterator)
            # After a kill too: it also ends the thread that pins memory.
            iterator._shutdown_workers()

    def __del__(self) -> None:
        """End the workers: once their queue is collected neither torch nor SIGTERM can."""
        # Not in a child, which has a copy of what its parent started.
        if getattr(self, "_inner", None) is not None and self._pid == os.getpid():
            self.close(at_once=True)

    def start(self) -> Iterator[Any]:
        """Start to read what the sampler says is next on this rank; ends what is being read."""
        # Before iter(), which sends the first requests to the workers at once.
        self._feed.epoch, self._feed.batches = self.sampler.epoch, list(self.sampler.begin())
        if self._inner is not None:
            return iter(self._inner)
        self._pid = os.getpid()
        self._inner = self._torch_loader()
        source: Iterator[Any] = iter(self._inner)
        # Workers outlive the signal by which torch would end them when Python exits; this is
        # registered after torch's own, so it comes before.
        atexit.register(_close, weakref.ref(self))  # weak: or it would live as long as Python
        return source

    def accept(self, answer: Any, wait_seconds: float) -> Any:
        """Note what was read, and return the batch.

        Raises:
            EspnetError: A sample could not be read.
        """
        if isinstance(answer, SampleFailure):
            advice = "" if self._config.on_error == "skip" else self._how_to_skip()
            raise answer.as_error(advice)
        self._note_failures(answer.failures)
        # Only now: batches that were read ahead are not done when a checkpoint is written.
        self.sampler.n_steps += 1
        self.last_batch = self._info(answer, wait_seconds)
        return answer.batch

    def explain(self, error: RuntimeError) -> Exception:
        """Return what an error of torch's workers means."""
        text = str(error)
        # torch raises a bare RuntimeError here, so its text is all there is to go by.
        if re.search("DataLoader worker.*(exited unexpectedly|killed by|exited with)", text):
            died = re.sub(r"\s+", " ", text.splitlines()[0])
            return ResourceError(
                f"{self.key}: a worker that reads samples died: {died} Most often memory ran out "
                f"(see `dmesg`): write fewer than num_workers: {self._config.num_workers}, or a "
                "lower prefetch_factor. With num_workers: 0 the error shows where it is."
            )
        if "timed out after" in text:
            return ResourceError(
                f"{self.key}: no batch came within timeout: {self._config.timeout:g} seconds.",
                fix="Set a longer one, or look at what is slow to read with num_workers: 0.",
            )
        return error

    def _torch_loader(self) -> Any:
        import torch

        config = self._config
        pin_memory = torch.cuda.is_available() if config.pin_memory is None else config.pin_memory
        more: dict[str, Any] = {}
        if config.num_workers:
            more = {
                "persistent_workers": config.persistent_workers is not False,
                "prefetch_factor": config.prefetch_factor or 2,
                "multiprocessing_context": config.multiprocessing_context,
                "worker_init_fn": partial(start_worker, self._worker_init_fn),
                "timeout": config.timeout,
            }
        # A generator of its own: the global one belongs to the model.
        generator = torch.Generator().manual_seed(self._reader.seed & (2**63 - 1))
        return torch.utils.data.DataLoader(
            self._reader,  # type: ignore[arg-type]  # it answers whole requests
            batch_sampler=self._feed,  # type: ignore[arg-type]
            collate_fn=as_is,  # type: ignore[arg-type]
            num_workers=config.num_workers,
            pin_memory=pin_memory,
            generator=generator,
            **more,
        )

    def _info(self, fetched: Fetched, wait_seconds: float) -> BatchInfo:
        n_items = len(self._reader.dataset)
        seconds = fetched.seconds
        return BatchInfo(
            n_samples=len(fetched.tickets),
            seconds=None if seconds is None else sum(seconds),
            padded_seconds=None if seconds is None else max(seconds) * len(seconds),
            wait_seconds=wait_seconds,
            indices=tuple(ticket % n_items for ticket in fetched.tickets),
        )

    def _note_failures(self, failures: list[SampleFailure]) -> None:
        limit = self._config.max_errors
        for failure in failures:
            self.n_errors += 1
            logger.warning("%s: left out %s", self.key, failure.summary)
            if limit is not None and self.n_errors > limit:
                raise DataError(
                    f"{self.key}: {self.n_errors} samples could not be read, which is more than "
                    f"max_errors: {limit}. The last was {failure.summary} Correct them, or allow "
                    f"more: max_errors: {max(10 * limit, 10)}"
                )

    def _how_to_skip(self) -> str:
        return f"To continue without samples that cannot be read, set {self.key}.on_error: skip"


def build_loader(
    dataset: Any,
    config: LoaderConfig,
    *,
    collate_fn: CollateFn,
    seed: int,
    split: str,
    lengths: Any = None,
) -> BatchLoader:
    """Make the loader of a split. The dataset's durations may be read; no sample is.

    Args:
        dataset: With `__len__` and `__getitem__`; None counts as one without samples.
        config: The settings of this split.
        collate_fn: Makes a batch of a list of samples.
        seed: All random choices follow from it and the epoch.
        split: `train`, which is shuffled unless the settings say otherwise, or another name.
        lengths: Seconds of each item, if the caller knows better than the dataset.

    Raises:
        ConfigError: The settings do not fit each other or the data: there are no samples, some are
            longer than a batch, or their lengths are not known.

    Example:
        >>> samples = [{"utt_id": str(i), "tokens": [i] * i} for i in range(1, 6)]
        >>> loader = build_loader(
        ...     samples, LoaderConfig(batch_size=2), collate_fn=list, seed=0, split="valid"
        ... )
        >>> [[sample["utt_id"] for sample in batch] for batch in loader]
        [['1', '2'], ['3', '4'], ['5']]
    """
    key = f"dataloader.{split}"
    source = LengthSource(dataset, config, key, lengths)
    plan = make_plan(source, seed=seed, split=split)
    reader = SampleReader(
        dataset,
        collate_fn,
        seed=seed,
        seconds=plan.seconds,
        skip=config.on_error == "skip",
        is_fixed=split != "train",
    )
    sampler = EpochSampler(
        plan.batches,
        plan.inputs,
        drop_last=config.drop_last,
        is_global=config.batch_is_global,
        key=key,
    )
    node = config.worker_init_fn
    init = node and build_function(node, key=f"{key}.worker_init_fn")
    return BatchLoader(reader, sampler, config, worker_init_fn=init, key=key)


def _close(loader: "weakref.ref[BatchLoader]") -> None:
    if (found := loader()) is not None:
        found.close()


class _BatchIterator:
    """Starts at the first `next`: Lightning makes iterators before it restores the position."""

    def __init__(self, loader: BatchLoader) -> None:
        self._loader = loader
        self._source: Iterator[Any] | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        start = time.perf_counter()
        try:
            if self._source is None:
                self._source = self._loader.start()
            answer = next(self._source)
            return self._loader.accept(answer, time.perf_counter() - start)
        except RuntimeError as error:
            explained = self._loader.explain(error)
            self._loader.close(at_once=True)
            if explained is error:
                raise
            raise explained from None
        except EspnetError:
            # Left to the garbage collector, each worker may take 5 seconds to end.
            self._loader.close()
            raise


class _Feed:
    """Batch sampler for torch's DataLoader."""

    def __init__(self, reader: SampleReader) -> None:
        self.epoch = 0
        self.batches: list[Ints] = []
        self._reader = reader

    def __iter__(self) -> Iterator[Request]:
        return self._requests(self.epoch, self.batches)  # as they are now, not at the first `next`

    def _requests(self, epoch: int, batches: list["Ints"]) -> Iterator[Request]:
        for first in range(0, len(batches), _N_SEEDED):
            some = batches[first : first + _N_SEEDED]
            # Together: alone, after a step has filled the caches of the CPU, each takes 0.1 ms.
            seeds = [self._reader.seeds(epoch, tickets) for tickets in some]
            for tickets, each in zip(some, seeds, strict=True):
                yield epoch, tickets, each


def outlive_sigterm(seconds: int = GRACE_SECONDS) -> None:
    """Let this process end some seconds after a SIGTERM rather than at once.

    Schedulers send it to all processes of a job. A training that loses its workers gets an error in
    the middle of a step, and cannot save. To be called in the worker, after torch has installed
    its own handler: in `worker_init_fn`.
    """

    def end_later(number: int, frame: object) -> None:
        # Whose default is the end, even in a read that hangs.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(seconds)

    signal.signal(signal.SIGTERM, end_later)


def start_worker(users: Callable[[int], Any] | None, number: int) -> None:
    """Be the `worker_init_fn` of a loader; calls that of the user, if there is one."""
    outlive_sigterm()
    if users is not None:
        users(number)


def kill_workers(iterator: Any) -> None:
    """End the workers of a torch iterator, whatever they are doing."""
    from torch._C import _remove_worker_pids

    if iterator._worker_pids_set:  # else torch would raise an error when it learns of their end
        _remove_worker_pids(id(iterator))
        iterator._worker_pids_set = False
    for worker in iterator._workers:
        # Not terminate(): these workers outlive a SIGTERM on purpose.
        worker.kill()
