"""The former name of the hooks in `tasks`: descriptions of unfinished detached runs load it."""

from espnet3.parallel.tasks import RunnerHooks

__all__ = ["RunnerHooks"]
