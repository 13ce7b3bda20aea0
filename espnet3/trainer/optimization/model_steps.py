"""What a model returns for each optimizer: outputs, or functions that compute them later."""

from collections.abc import Mapping, Sequence
from typing import Any

from espnet3.errors import TrainingError, suggest


def steps_of(output: Any, optimizers: Sequence[str], model: str) -> dict[str, Any]:
    """Return the step of each optimizer.

    A step is an output, a function without arguments that returns one, or None for nothing to do.
    With one optimizer, the output itself will do.

    Raises:
        TrainingError: with several optimizers, the steps are not named after them.
    """
    if is_named(output, optimizers):
        return _checked(output, optimizers, model)
    if len(optimizers) == 1:
        return {optimizers[0]: output}
    keys = f" with the keys {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
    raise TrainingError(
        f"{model}.forward returned one {type(output).__name__}{keys}, but there are the optimizers "
        f"{', '.join(optimizers)}. {_example(optimizers)}"
    )


def _checked(steps: Mapping[str, Any], optimizers: Sequence[str], model: str) -> dict[str, Any]:
    for name in steps:
        if name not in optimizers:
            raise TrainingError(
                f"{model}.forward returned a step {name!r}, but there is no such optimizer."
                f"{suggest(str(name), optimizers)} The optimizers are: {', '.join(optimizers)}."
            )
    missing = [name for name in optimizers if name not in steps]
    if missing:
        raise TrainingError(
            f"{model}.forward returned no step for {', '.join(missing)}. {_example(optimizers)} "
            "Where there is nothing to do for one, let it be None, on all ranks alike."
        )
    return dict(steps)


def _example(optimizers: Sequence[str]) -> str:
    steps = ", ".join(f'"{name}": lambda: self.{name}_step(batch)' for name in optimizers)
    return f"Return a step for each: {{{steps}}}"


def is_named(output: Any, optimizers: Sequence[str]) -> bool:
    """Tell whether a model returned steps, and not one output."""
    return isinstance(output, Mapping) and not set(output).isdisjoint(optimizers)


def is_lazy(step: Any) -> bool:
    """Tell whether a step is still to be computed."""
    return callable(step)


def compute(step: Any) -> Any:
    """Return the output of a step, which is computed only now if the step is a function."""
    return step() if is_lazy(step) else step
