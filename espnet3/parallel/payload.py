"""Pickle the run spec for workers, and refuse oversized ones."""

from collections.abc import Callable, Iterator
from typing import Any

from espnet3.errors import ProviderError
from espnet3.parallel.tasks import RunSpec

LIMIT = 1_000_000
"""Bytes: beyond this, objects belong into the provider's build functions."""


def pack_spec(spec: RunSpec, provider: Any) -> bytes:
    """Serialise a run for its workers.

    Raises:
        ProviderError: naming what is too large, or cannot be sent at all.
    """
    import cloudpickle

    try:
        data: bytes = cloudpickle.dumps(spec)
    except Exception as error:
        raise ProviderError(_unsendable(spec, provider, error)) from error
    if len(data) > LIMIT:
        raise ProviderError(_too_large(spec, provider, len(data)))
    return data


def check_size(setup_fn: Callable[[], Any], provider: Any) -> None:
    """Refuse a provider that is too large to travel, also where it need not.

    What cannot be serialised at all is let through: in this process it does no harm.
    """
    import cloudpickle

    for name, value in _parts(setup_fn, provider):
        try:
            size = len(cloudpickle.dumps(value))
        except Exception:
            continue
        if size > LIMIT:
            raise ProviderError(_advice(name, size))


def _parts(setup_fn: Callable[[], Any], provider: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a set-up function carries, the innermost names first."""
    for name, value in getattr(provider, "__dict__", {}).items():
        if isinstance(value, dict):
            for key, entry in value.items():
                yield f"{name}[{key!r}]", entry
        yield f"{type(provider).__name__}.{name}", value
    code = getattr(setup_fn, "__code__", None)
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(setup_fn, "__closure__", None) or (), strict=False
    ):
        try:
            yield f"{name!r}, which the set-up function captures,", cell.cell_contents
        except ValueError:  # a cell that is not filled yet
            continue
    functions = getattr(setup_fn, "__globals__", {}) if code else {}
    for name in getattr(code, "co_names", ()):
        if name in functions and functions.get("__name__") == "__main__":
            yield f"the global {name!r}", functions[name]


def _too_large(spec: RunSpec, provider: Any, size: int) -> str:
    import cloudpickle

    sized = []
    for name, value in _parts(spec.setup_fn, provider):
        try:
            sized.append((len(cloudpickle.dumps(value)), name))
        except Exception:
            continue
    large = [(n_bytes, name) for n_bytes, name in sized if n_bytes > LIMIT]
    if large:
        return _advice(large[0][1], large[0][0])
    return _advice("What the runner and provider capture from the script", size)


def _advice(name: str, size: int) -> str:
    return (
        f"{name} is {size / 1e6:.1f} MB, and would be sent to every worker; the limit is "
        f"{LIMIT / 1e6:.0f} MB. Keep its path in the config, and load it in the provider's build "
        "functions (build_dataset, build_model, or what build_worker_setup_fn returns)."
    )


def _unsendable(spec: RunSpec, provider: Any, error: Exception) -> str:
    import cloudpickle

    culprit = "The runner or provider"
    for name, value in _parts(spec.setup_fn, provider):
        try:
            cloudpickle.dumps(value)
        except Exception as reason:
            culprit, error = name, reason
            break
    return (
        f"{culprit} cannot be sent to a worker ({type(error).__name__}: {error}). Open "
        "files, locks and connections belong in the provider's build functions."
    )
