"""The position in an epoch: which batches are done and which are next on this rank, also with
samplers of the user's own.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from espnet3.components.data.batching import (
    BatchPlan,
    Limit,
    for_all_ranks,
    in_steps,
    shares,
    tickets_of,
    world,
)
from espnet3.components.data.random_numbers import global_rngs_kept
from espnet3.config.fingerprint import diff
from espnet3.config.instantiate import instantiate
from espnet3.config.resolve import resolved
from espnet3.config.targets import BadTarget, locate, signature_of
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    from espnet3.components.data.dataset import Ints

logger = logging.getLogger(__name__)

_VERSION = 1


class EpochSampler:
    """Deals the batches of an epoch to the ranks of the running process group.

    Args:
        plan: Makes the batches of an epoch, of all ranks.
        inputs: What the plan depends on, as plain values: where another run's differ, its position
            in an epoch says nothing about ours.
        drop_last: Leave out what does not fill a step of all ranks.
        is_global: Whether a batch is that of all ranks together, who share its samples; otherwise
            each rank gets whole batches.
        key: What messages call us.
    """

    def __init__(
        self,
        plan: BatchPlan,
        inputs: Mapping[str, Any],
        *,
        drop_last: bool = False,
        is_global: bool = False,
        key: str = "dataloader.train",
    ) -> None:
        self.plan = plan
        self.inputs = dict(inputs)
        self.drop_last = drop_last
        self.is_global = is_global
        self.key = key
        self.epoch = 0
        # Pairs of a number of ranks and the steps they did: of earlier processes, then of ours.
        self._before: list[list[int]] = []
        self.n_steps = 0
        """Those that are done since `begin`; whoever hands out its batches counts them."""
        self._n_ranks = 1
        self._has_begun = False
        self._has_warned = False
        self._planned: tuple[int, list[Ints]] | None = None

    def __len__(self) -> int:
        """Return the steps of a rank in this epoch, those done before a resume included."""
        n_ranks, _ = world()
        n_left = len(self._dealt(n_ranks)) // n_ranks
        return sum(steps for _, steps in self._before) + n_left

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch; the position in it stays if it is the present one."""
        if epoch != self.epoch:
            self.epoch = epoch
            self._restart([])

    def begin(self) -> list["Ints"]:
        """Return the batches of this rank: all, or after `load_state_dict` what is left."""
        # Only the first iteration after a resume is partial; another one of this epoch starts over.
        if self._has_begun:
            self._restart([])
        self._has_begun = True
        # Not in the constructor, which may run before there is a process group.
        self._n_ranks, rank = world()
        dealt = self._dealt(self._n_ranks)
        self._warn_of_samples_in_no_step(dealt)
        return dealt[rank :: self._n_ranks]

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values, the same on all ranks."""
        done = self._done()
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "done": done,
            "n_batches_done": sum(
                steps if self.is_global else n_ranks * steps for n_ranks, steps in done
            ),
            "inputs": dict(self.inputs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where another process was; the number of ranks may be another one."""
        self.epoch = int(state["epoch"])
        done = [[int(n_ranks), int(steps)] for n_ranks, steps in state["done"]]
        changed = diff(dict(state["inputs"]), self.inputs)
        if changed and any(steps for _, steps in done):
            logger.warning(
                "%s: epoch %d starts over, since its batches are others than those of the "
                "checkpoint, which was %d batches into the epoch. What changed: %s",
                self.key, self.epoch, state["n_batches_done"], "; ".join(changed),
            )  # fmt: skip
        self._restart([] if changed else done)
        self._warn_of_lost_samples()

    def _restart(self, before: list[list[int]]) -> None:
        self._before, self.n_steps, self._has_begun = before, 0, False

    def _done(self) -> list[list[int]]:
        done = [list(pair) for pair in self._before]
        if not self.n_steps:
            return done
        if done and done[-1][0] == self._n_ranks:
            done[-1][1] += self.n_steps
        else:
            done.append([self._n_ranks, self.n_steps])
        return done

    def _left(self) -> list["Ints"]:
        """Return the batches that earlier processes left of the epoch."""
        batches = self._batches()
        for n_then, steps in self._before:
            if self.is_global:
                batches = self._whole(batches, n_then)[steps:]
                continue
            dealt = self._in_steps(batches, n_then)
            # What those ranks had to leave out may fit now, unless they were through.
            out = [] if n_then * steps >= len(dealt) else self._left_out(batches, dealt)
            batches = [*dealt[n_then * steps :], *out]
        return batches

    def _left_out(self, batches: list["Ints"], dealt: list["Ints"]) -> list["Ints"]:
        """Return the samples that were in no step of the ranks, as batches of one."""
        import numpy as np

        if self.drop_last or sum(map(len, batches)) == sum(map(len, dealt)):
            return []
        tickets = np.concatenate(batches)
        return list(tickets[~np.isin(tickets, np.concatenate(dealt))][:, None])

    def _dealt(self, n_ranks: int) -> list["Ints"]:
        batches = self._left()
        # With another number of ranks, what is left of an epoch may be too little for a step.
        is_counted = self.drop_last and not self.is_global
        n_left = len(batches) if is_counted else sum(map(len, batches))
        return [] if self._before and n_left < n_ranks else self._in_steps(batches, n_ranks)

    def _warn_of_lost_samples(self) -> None:
        n_ranks, _ = world()
        left = self._left() if self._before else []
        if left and not self._dealt(n_ranks):
            logger.warning(
                "%s: the last %d samples of epoch %d are left out, since they are too few for a "
                "step of %d ranks.", self.key, sum(map(len, left)), self.epoch, n_ranks,
            )  # fmt: skip

    def _warn_of_samples_in_no_step(self, dealt: list["Ints"]) -> None:
        """Warn once that each epoch leaves samples out that would make a batch too large."""
        if self.drop_last or self._has_warned or not dealt:
            return
        n_samples = sum(map(len, self._left()))
        n_out = n_samples - sum(map(len, dealt))
        if n_out:
            self._has_warned = True
            logger.warning(
                "%s: %d of %d samples are left out of each epoch (others each time where they are "
                "shuffled): %d ranks take equally many steps, and a batch with one more sample "
                "would be larger than is set. To use all, allow larger batches, or use a number "
                "of devices that divides %d.",
                self.key, n_out, n_samples, self._n_ranks, n_samples,
            )  # fmt: skip

    def _whole(self, batches: list["Ints"], n_ranks: int) -> list["Ints"]:
        # An epoch that earlier processes finished has nothing to share.
        return for_all_ranks(batches, n_ranks, drop_last=self.drop_last) if batches else []

    def _in_steps(self, batches: list["Ints"], n_ranks: int) -> list["Ints"]:
        try:
            if self.is_global:
                return shares(for_all_ranks(batches, n_ranks, drop_last=self.drop_last), n_ranks)
            limit = getattr(self.plan, "limit", None)  # a plan of one's own may have none
            return in_steps(batches, n_ranks, drop_last=self.drop_last, limit=limit)
        except ConfigError as error:
            raise error.at(self.key) from error

    def _batches(self) -> list["Ints"]:
        # The length alone is asked for again and again, and planning a large corpus takes seconds.
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = self.epoch, self.plan.batches(self.epoch)
        return self._planned[1]


class OwnBatches:
    """The batches that a sampler gives.

    It is asked for those of all ranks, on each of them, with the global random generators seeded
    from the seed and the epoch, so that all ranks get the same answer.

    Args:
        sampler: Yields indices, or lists of them if `batch_size` is None; its `set_epoch(epoch)`
            is called if it has one.
        n_items: Indices are below this number.
        seed: Of the experiment.
        batch_size: Samples of a batch.
        drop_last: With a `batch_size`, leave out what does not fill a batch.
        key: Of the sampler in the config.
    """

    def __init__(
        self,
        sampler: Any,
        *,
        n_items: int,
        seed: int,
        batch_size: int | None = None,
        drop_last: bool = False,
        key: str = "dataloader.train.batch_sampler",
    ) -> None:
        self.sampler = sampler
        self.n_items = n_items
        self.seed = seed
        self.batch_size = batch_size
        # Whatever a sampler of batches goes by: none of them gets more than it had.
        self.limit = Limit(batch_size or 1)
        self.drop_last = drop_last
        self.key = key
        n_replicas = getattr(sampler, "num_replicas", 1)
        if n_replicas != 1:
            raise self._error(
                f"deals to {n_replicas} ranks itself, but samplers are dealt out by us",
                "Let it give the batches of all: num_replicas: 1",
            )

    def batches(self, epoch: int) -> list["Ints"]:
        """Return the batches of all ranks.

        Raises:
            ConfigError: The sampler gives none, or what is no index.
        """
        import numpy as np

        if callable(set_epoch := getattr(self.sampler, "set_epoch", None)):
            set_epoch(epoch)
        with global_rngs_kept() as seed:
            seed(self.seed, epoch)
            given = list(self.sampler)
        lists = given if self.batch_size is None else list(self._cut(given))
        batches = [self._checked(batch) for batch in lists]
        if not batches:
            raise self._error("gives no batches.")
        tickets = tickets_of(np.concatenate(batches), self.n_items)
        return np.split(tickets, np.cumsum([len(batch) for batch in batches])[:-1])

    def _cut(self, indices: list[Any]) -> Iterator[list[Any]]:
        size = self.batch_size or len(indices)
        for start in range(0, len(indices), size):
            batch = indices[start : start + size]
            if len(batch) == size or not self.drop_last:
                yield batch

    def _checked(self, batch: Any) -> "Ints":
        import numpy as np

        try:
            array = np.asarray(batch)
        except (TypeError, ValueError):
            array = np.empty(0)
        if array.ndim != 1 or not array.size or array.dtype.kind not in "iu":
            wanted = "a list of indices" if self.batch_size is None else "an index"
            raise self._error(
                f"gave {batch!r:.80} instead of {wanted}",
                "Write one that yields lists as a batch_sampler, one that yields single indices as "
                "a sampler with a batch_size.",
            )
        if array.min() < 0 or array.max() >= self.n_items:
            raise self._error(
                f"gave the indices {batch!r:.80}, but the dataset has {self.n_items} items, "
                "counted from 0."
            )
        return array.astype(np.int64)

    def _error(self, problem: str, fix: str = "") -> ConfigError:
        kind = type(self.sampler).__name__
        return ConfigError(self.key, key=self.key, problem=f", a {kind}, {problem}", fix=fix)


def build_sampler(node: Any, offered: Mapping[str, Any], *, key: str) -> Any:
    """Build a sampler from its `_target_`, or return one that was built already.

    Args:
        node: The block of the config.
        offered: Arguments that it gets if its signature has them and the block does not set them.
        key: Dotted key of the block.

    Raises:
        ConfigError: There is no such target, or its arguments do not fit.
    """
    plain = resolved(node, prefix=key)
    if not isinstance(plain, Mapping):
        if hasattr(node, "__iter__") and not isinstance(node, str):
            return node
        raise ConfigError(
            key=key,
            value=node,
            problem="which gives no indices",
            fix="Write a mapping with the _target_ of your class: "
            "{_target_: src.sampler.MySampler}",
        )
    known = _argument_names(plain.get("_target_"))
    more = {name: value for name, value in offered.items() if name in known and name not in plain}
    return instantiate(node, key=key, **more)


def _argument_names(target: Any) -> set[str]:
    try:
        signature = signature_of(locate(target) if isinstance(target, str) else target)
    except BadTarget:
        return set()  # instantiate() says what is wrong
    return set(signature.parameters) if signature else set()
