"""The loader of one split: batches for this rank, from worker processes, resumable mid-epoch."""

import atexit
import logging
import os
import re
import signal
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from espnet3.components.data.batch_sampler import EpochSampler
from espnet3.components.data.collate import CollateFn
from espnet3.components.data.errors import DataError
from espnet3.components.data.functions import build_function
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.loader_plan import LengthSource, make_plan
from espnet3.components.data.sample_reader import (
    Fetched,
    Request,
    SampleFailure,
    SampleReader,
    as_is,
)
from espnet3.errors import EspnetError, ResourceError

logger = logging.getLogger(__name__)

GRACE_SECONDS = 30
"""In which the training saves and stops its workers itself."""


@dataclass(frozen=True)
class BatchInfo:
    """What is known of a batch of this rank."""

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
        self._feed = _Feed()
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
        self._inner = None
        if iterator is not None and self._config.num_workers:
            if at_once:
                kill_workers(iterator)
            iterator._shutdown_workers()

    def __del__(self) -> None:
        """End the workers: once their queue is collected neither torch nor SIGTERM can."""
        # Not in a child, which has a copy of what its parent started.
        if getattr(self, "_inner", None) is not None and self._pid == os.getpid():
            self.close(at_once=True)

    def start(self) -> Iterator[Any]:
        """Start to read what the sampler says is next on this rank; ends what is being read."""
        self._feed.requests = [(self.sampler.epoch, batch) for batch in self.sampler.begin()]
        if self._inner is not None:
            return iter(self._inner)
        self._pid = os.getpid()
        self._inner = self._torch_loader()
        source: Iterator[Any] = iter(self._inner)
        # Workers outlive the signal by which torch would end them when Python exits; this is
        # registered after torch's own, so it comes before.
        atexit.register(_close, weakref.ref(self))
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
        self.sampler.advance()
        self.last_batch = self._info(answer, wait_seconds)
        return answer.batch

    def explain(self, error: RuntimeError) -> Exception:
        """Return what an error of torch's workers means."""
        text = str(error)
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
    key: str | None = None,
) -> BatchLoader:
    """Make the loader of a split. The dataset's durations may be read; no sample is.

    Args:
        dataset: With `__len__` and `__getitem__`; None counts as one without samples.
        config: The settings of this split.
        collate_fn: Makes a batch of a list of samples.
        seed: All random choices follow from it and the epoch.
        split: `train`, which is shuffled unless the settings say otherwise, or another name.
        lengths: Seconds of each item, if the caller knows better than the dataset.
        key: Of the settings in the config; None for `dataloader.<split>`.

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
    key = key or f"dataloader.{split}"
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
    sampler = EpochSampler(plan.batches, plan.inputs, drop_last=config.drop_last, key=key)
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
    """What torch's DataLoader takes for a batch sampler."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


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
        worker.kill()
