"""Where training is in an epoch: which batches are done, and which are next on this rank."""

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from espnet3.components.data.batching import BatchPlan
from espnet3.components.data.dealing import in_steps, world
from espnet3.config.fingerprint import diff
from espnet3.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    Ints = np.ndarray[Any, np.dtype[np.int64]]

logger = logging.getLogger(__name__)

_VERSION = 1


class EpochSampler:
    """Deals the batches of an epoch to the ranks of the running process group.

    Args:
        plan: Makes the batches of an epoch, of all ranks.
        inputs: What the plan depends on, as plain values: where another run's differ, its position
            in an epoch says nothing about ours.
        drop_last: Leave out what does not fill a step of all ranks.
        key: What messages call us.
    """

    def __init__(
        self,
        plan: BatchPlan,
        inputs: Mapping[str, Any],
        *,
        drop_last: bool = False,
        key: str = "dataloader.train",
    ) -> None:
        self.plan = plan
        self.inputs = dict(inputs)
        self.drop_last = drop_last
        self.key = key
        self.epoch = 0
        # Pairs of a number of ranks and the steps they did: of earlier processes, then of ours.
        self._before: list[list[int]] = []
        self._steps = 0
        self._n_ranks = 1
        self._has_begun = False
        self._has_told = False
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
        if self._has_begun:
            self._restart([])
        self._has_begun = True
        self._n_ranks, rank = world()
        dealt = self._dealt(self._n_ranks)
        self._tell_what_fits_no_step(dealt)
        return dealt[rank :: self._n_ranks]

    def advance(self) -> None:
        """Count a step as done."""
        self._steps += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position as plain values, the same on all ranks."""
        done = self._done()
        return {
            "version": _VERSION,
            "epoch": self.epoch,
            "done": done,
            "n_batches_done": sum(n_ranks * steps for n_ranks, steps in done),
            "inputs": dict(self.inputs),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another process was; the number of ranks may be another one."""
        self.epoch = int(state["epoch"])
        done = [[int(n_ranks), int(steps)] for n_ranks, steps in state["done"]]
        changed = diff(dict(state["inputs"]), self.inputs)
        if changed and any(steps for _, steps in done):
            logger.warning(
                "%s: epoch %d starts anew, since its batches are others than those of the "
                "checkpoint, which was %d batches into the epoch. What changed: %s",
                self.key, self.epoch, state["n_batches_done"], "; ".join(changed),
            )  # fmt: skip
        self._restart([] if changed else done)
        self._tell_what_is_lost()

    def _restart(self, before: list[list[int]]) -> None:
        self._before, self._steps, self._has_begun = before, 0, False

    def _done(self) -> list[list[int]]:
        done = [list(pair) for pair in self._before]
        if not self._steps:
            return done
        if done and done[-1][0] == self._n_ranks:
            done[-1][1] += self._steps
        else:
            done.append([self._n_ranks, self._steps])
        return done

    def _left(self) -> list["Ints"]:
        """Return the batches that earlier processes left of the epoch."""
        batches = self._batches()
        for n_then, steps in self._before:
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
        n_left = len(batches) if self.drop_last else sum(map(len, batches))
        return [] if self._before and n_left < n_ranks else self._in_steps(batches, n_ranks)

    def _tell_what_is_lost(self) -> None:
        n_ranks, _ = world()
        left = self._left() if self._before else []
        if left and not self._dealt(n_ranks):
            logger.warning(
                "%s: the last %d samples of epoch %d are left out, since they are too few for a "
                "step of %d ranks.", self.key, sum(map(len, left)), self.epoch, n_ranks,
            )  # fmt: skip

    def _tell_what_fits_no_step(self, dealt: list["Ints"]) -> None:
        """Say, once, that each epoch leaves samples out that would make a batch too large."""
        if self.drop_last or self._has_told or not dealt:
            return
        n_samples = sum(map(len, self._left()))
        n_out = n_samples - sum(map(len, dealt))
        if n_out:
            self._has_told = True
            logger.warning(
                "%s: %d of %d samples are left out of each epoch (others each time where they are "
                "shuffled): %d ranks take equally many steps, and a batch with one more sample "
                "would be larger than is set. To use all, allow larger batches, or use a number "
                "of devices that divides %d.",
                self.key, n_out, n_samples, self._n_ranks, n_samples,
            )  # fmt: skip

    def _in_steps(self, batches: list["Ints"], n_ranks: int) -> list["Ints"]:
        try:
            limit = getattr(self.plan, "limit", None)  # a plan of one's own may have none
            return in_steps(batches, n_ranks, drop_last=self.drop_last, limit=limit)
        except ConfigError as error:
            raise ConfigError(f"{self.key}: {error}") from error

    def _batches(self) -> list["Ints"]:
        if self._planned is None or self._planned[0] != self.epoch:
            self._planned = self.epoch, self.plan.batches(self.epoch)
        return self._planned[1]
