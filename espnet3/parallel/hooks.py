"""Hooks of a runner, called with the arguments that their signatures name."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from keyword import iskeyword
from typing import Any

from espnet3.errors import ProviderError, suggest

Hook = Callable[..., Any]
WRITER_HOOKS = ("open_writers", "write_record", "close_writers")
_ITEM = "idx"
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class RunnerHooks:
    """The static functions of a runner: all that a worker needs of it."""

    forward: Hook
    open_writers: Hook
    write_record: Hook
    close_writers: Hook
    complete: Hook | None = None
    """Called with what `forward` returned and its index; what it returns is the result."""
    identify: Hook | None = None
    """Called with the index of an item that failed; returns the id that users know it by."""

    @classmethod
    def of(cls, runner: type) -> "RunnerHooks":
        """Take the hooks from a runner class.

        Raises:
            ProviderError: if one of them is not static, and so could not travel to a worker.
        """
        return cls(**{name: _static(runner, name) for name in ("forward", *WRITER_HOOKS)})


def _static(runner: type, name: str) -> Hook:
    # An ordinary `getattr` returns the bare function, with or without @staticmethod.
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


def split_batch(results: Any, n_items: int, who: str) -> Any:
    """Return the results of a batch, one per item: those of a list, or of a dict of lists.

    Args:
        results: what came back for the batch; lists may be tuples, arrays or tensors.
        n_items: of the batch.
        who: returned it, for the error.

    Raises:
        ProviderError: there is not one per item, or it is not clear which belongs to which.
    """
    begin = f"{who} got a batch of {n_items} items and returned"
    if isinstance(results, Mapping) and results:
        odd = next((key for key, value in results.items() if _length(value) != n_items), None)
        if odd is None:
            rows = zip(*results.values(), strict=True)
            return [dict(zip(results, row, strict=True)) for row in rows]
        raise ProviderError(
            f"{begin} a dict, of which {odd!r} is {_described(results[odd])}. Return a dict of "
            f"lists with one value per item, or a list with one output per item{_OR_UNBATCHED}"
        )
    if _length(results) != n_items:
        raise ProviderError(
            f"{begin} {_described(results)}. Return a list with one output per item, in the same "
            f"order{_OR_UNBATCHED}"
        )
    # A tuple of tuples is one record per item; a tuple of lists may be the fields of all.
    is_ambiguous = isinstance(results, tuple) and n_items > 1
    if is_ambiguous and all(_length(e) == n_items and type(e) is not tuple for e in results):
        raise ProviderError(
            f"{begin} a tuple of {n_items} with {n_items} values each: whether each belongs to an "
            "item or to a field is not known. Return a list with one output per item, or a dict of "
            'lists: {"hyp": [...], "score": [...]}'
        )
    return results


_OR_UNBATCHED = ", or leave batch_size and batch_seconds unset."


def _length(value: Any) -> int | None:
    """Return how many values a list, or what stands for one, has; None for one value."""
    # These have a length, but are one value each.
    if isinstance(value, Mapping | str | bytes | set | frozenset):
        return None
    try:
        return len(value)
    except TypeError:  # also of a tensor without dimensions
        return None


def _described(value: Any) -> str:
    length = _length(value)
    return type(value).__name__ if length is None else f"{length} outputs"


def bind(function: Hook, leading: Sequence[str], env: Mapping[str, Any]) -> Hook:
    """Return a callable that takes the leading arguments and gives the function what it accepts.

    Leading arguments are passed by position, as many as the function has positional parameters
    that are not keys of `env`; keys of `env` are passed by name, all of them to a function with
    `**env`. They take the place of defaults, which are for environments that lack the name.

    Raises:
        ProviderError: if the function has a parameter without default that neither provides, has
            no place for the item, or was given an argument that `env` has as well.
    """
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # a builtin that does not tell
        return function
    _check_clashes(function, list(parameters), leading, env)
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
        return function  # nothing to add: spare the call of a wrapper for each item
    return _fix(function, len(leading), n_leading, kwargs)


def _fix(function: Hook, n_given: int, n_passed: int, kwargs: dict[str, Any]) -> Hook:
    """Return a callable that passes on the first of its arguments, and always the same kwargs.

    Compiled for these very names, as dataclasses are: a `partial` copies its dict at each call,
    which is as long as a trivial item takes.
    """
    # Such names reach a function through `**env` only, and cannot be written in source code.
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


def _check_clashes(
    function: Hook,
    parameters: Sequence[inspect.Parameter],
    leading: Sequence[str],
    env: Mapping[str, Any],
) -> None:
    """Refuse what could only be settled by leaving out, in silence, what was given."""
    name = _name(function)
    given = function.keywords if isinstance(function, partial) else {}
    twice = [key for key in given if key in env]
    if twice:
        raise ProviderError(
            f"{name} was given {twice[0]}={given[twice[0]]!r:.60}, and the environment has "
            f"{twice[0]!r} as well. Leave it out of one of the two, such as: "
            f"partial({name}, ...) without {twice[0]}="
        )
    if [*leading] != [_ITEM] or any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return
    first = next((p for p in parameters if p.kind in _POSITIONAL), None)
    if first is None:
        raise ProviderError(f"{name} takes no item.", fix=f"Write: {_definition(name, _ITEM)}")
    if first.name in env and first.kind is not first.POSITIONAL_ONLY:
        raise ProviderError(
            f"{name} takes the item as its first argument, {first.name!r}, and the environment has "
            f"{first.name!r} as well.",
            fix=f"Write: {_definition(name, _free_name(env))}, or give it "
            "another name in the provider's params or environment.",
        )


def _definition(name: str, item: str) -> str:
    return f"lambda {item}, ...: ..." if name == "<lambda>" else f"def {name}({item}, ...)"


def _free_name(env: Mapping[str, Any]) -> str:
    return next(name for name in (_ITEM, "item", "item_index", f"{_ITEM}_") if name not in env)


def _name(function: Hook) -> str:
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition(".")[2]


def _unmet(function: Hook, name: str, env: Mapping[str, Any]) -> str:
    shown = getattr(function, "__qualname__", _name(function))
    return (
        f"{shown} needs {name!r}, but the provider's environment has "
        f"{', '.join(map(repr, env)) or 'nothing'}.{suggest(name, env)} Add it to the provider's "
        f"params or environment, or give it a default: {name}=None."
    )
