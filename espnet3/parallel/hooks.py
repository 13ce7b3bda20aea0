"""The functions a runner's author writes, and how they are called: with what they ask for."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from keyword import iskeyword
from typing import Any

from espnet3.errors import ProviderError, suggest

Hook = Callable[..., Any]
WRITER_HOOKS = ("open_writers", "write_record", "close_writers")


@dataclass(frozen=True)
class RunnerHooks:
    """The static functions of a runner: all that a worker needs of it."""

    forward: Hook
    open_writers: Hook
    write_record: Hook
    close_writers: Hook

    @classmethod
    def of(cls, runner: type) -> "RunnerHooks":
        """Take the hooks from a runner class.

        Raises:
            ProviderError: if one of them is not static, and so could not travel to a worker.
        """
        return cls(**{name: _static(runner, name) for name in ("forward", *WRITER_HOOKS)})


def _static(runner: type, name: str) -> Hook:
    attribute = inspect.getattr_static(runner, name)
    if not isinstance(attribute, staticmethod):
        raise ProviderError(
            f"{runner.__name__}.{name} is not static. Workers get the function, not the runner; "
            f"write @staticmethod above 'def {name}' and take no 'self'."
        )
    function: Hook = attribute.__func__
    return function


def overridden(runner: type, base: type, names: Sequence[str]) -> list[str]:
    """Return those of the names that `runner` defines differently from `base`."""
    return [
        name
        for name in names
        if inspect.getattr_static(runner, name) is not inspect.getattr_static(base, name)
    ]


def bind(function: Hook, leading: Sequence[str], env: Mapping[str, Any]) -> Hook:
    """Return a callable that takes the leading arguments and gives the function what it accepts.

    Leading arguments are passed by position, as many as the function has positional parameters
    that are not keys of `env`; keys of `env` are passed by name, all of them to a function with
    `**env`.

    Raises:
        ProviderError: if the function has a parameter without default that neither provides.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin that does not tell
        return function
    accepts_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    takes_args = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and (p.name not in env or p.kind is p.POSITIONAL_ONLY)
    ]
    n_leading = len(leading) if takes_args else min(len(leading), len(positional))
    taken = {p.name for p in positional[:n_leading]}
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    kwargs = {k: v for k, v in env.items() if k not in taken and (accepts_all or k in named)}
    unmet = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
        and p.name not in taken
        and p.name not in kwargs
    ]
    if unmet:
        raise ProviderError(_unmet(function, unmet[0], env))
    if n_leading == len(leading) and not kwargs:
        return function
    return _fix(function, len(leading), n_leading, kwargs)


def _fix(function: Hook, n_given: int, n_passed: int, kwargs: dict[str, Any]) -> Hook:
    """Return a callable that passes on the first of its arguments, and always the same kwargs.

    Compiled for these very names, as dataclasses are: a `partial` copies its dict at each call,
    which is as long as a trivial item takes.
    """
    if not all(name.isidentifier() and not iskeyword(name) for name in kwargs):
        return lambda *leading: function(*leading[:n_passed], **kwargs)
    call: Hook = _compile(n_given, n_passed, tuple(kwargs))(function, *kwargs.values())
    return call


@cache
def _compile(n_given: int, n_passed: int, names: tuple[str, ...]) -> Callable[..., Hook]:
    given = ", ".join(f"a{i}" for i in range(n_given))
    values = "".join(f", v{i}" for i in range(len(names)))
    passed = [f"a{i}" for i in range(n_passed)] + [f"{name}=v{i}" for i, name in enumerate(names)]
    source = f"lambda f{values}: lambda {given}: f({', '.join(passed)})"
    # Under the name of this file, so that tracebacks for users leave it out like the rest of ours.
    make: Callable[..., Hook] = eval(compile(source, __file__, "eval"))
    return make


def _unmet(function: Hook, name: str, env: Mapping[str, Any]) -> str:
    return (
        f"{function.__qualname__} needs {name!r}, but the provider's environment has "
        f"{', '.join(map(repr, env)) or 'nothing'}.{suggest(name, env)} Add it to the provider's "
        f"params or environment, or give it a default: {name}=None."
    )
