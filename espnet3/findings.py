"""Findings of checks: the lines of `espnet3 doctor` and `espnet3 explain`."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from typing import Literal, ParamSpec

from espnet3.errors import EspnetError

Level = Literal["ok", "warning", "problem"]
P = ParamSpec("P")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level
    what: str
    """Subject of the finding, in a word or two."""
    told: str
    """Observation, as a sentence."""
    fix: str = ""
    """Remedy, as a line to paste where there is one."""

    @classmethod
    def of(cls, what: str, error: BaseException | str, level: Level = "problem") -> "Finding":
        """Return an error, or a note from a log, as a finding, its fix apart."""
        if not isinstance(error, EspnetError | str):
            return cls(level, what, f"{type(error).__name__}: {error}")
        fix: str = getattr(error, "fix", "")
        return cls(level, what, str(error).removesuffix(fix).strip(), fix)


Check = Callable[P, list[Finding]]


def never_raises(what: str) -> Callable[[Check[P]], Check[P]]:
    """Make a check report its own failure, so that the others are still made.

    Errors of ours are problems that it was to find; others mean that it could not look.
    """

    def decorate(check: Check[P]) -> Check[P]:
        @wraps(check)
        def run(*args: P.args, **kwargs: P.kwargs) -> list[Finding]:
            try:
                return check(*args, **kwargs)
            except EspnetError as error:
                return [Finding.of(what, error)]
            except Exception as error:
                told = f"could not be checked: {type(error).__name__}: {error}"
                return [Finding("warning", what, told)]

        return run

    return decorate


def has_problem(findings: Iterable[Finding]) -> bool:
    """Tell whether there is a problem among them."""
    return any(finding.level == "problem" for finding in findings)
