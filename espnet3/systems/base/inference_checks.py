"""Check an inference config before anything is built."""

import inspect
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from espnet3.config.advice import raise_together
from espnet3.config.sources import names_places
from espnet3.config.targets import (
    BadTarget,
    argument_names,
    check_arguments,
    find_definition,
    locate,
    locate_callable,
    signature_of,
)
from espnet3.errors import ConfigError, suggest
from espnet3.parallel.base_runner import BaseRunner, one_or_more
from espnet3.parallel.clusters.registry import check_resources
from espnet3.parallel.parallel import as_parallel_config
from espnet3.parallel.tasks import WRITER_HOOKS, overridden
from espnet3.systems.base.inference_config import (
    BATCHING,
    DEFAULT_PROVIDER,
    DEFAULT_RUNNER,
    OUTPUTS,
    InferenceConfig,
    chosen_test_sets,
    listed_test_sets,
    load_inference_config,
    writes_fields,
)
from espnet3.systems.base.inference_output import load_function
from espnet3.systems.base.inference_provider import ORGANIZER, builds_own_dataset

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig

logger = logging.getLogger(__name__)

_EXAMPLES = {
    "model": "{_target_: src.model.MyModel}",
    "dataset": "{test: [{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]}",
}
_SET_BY_STAGE = {
    "output_dir": "Each test set has a folder below inference_dir. Write at the top: "
    "inference_dir: {value}",
    "provider": "Write it as a block of its own: provider: {{_target_: ...}}",
}
_TO_WRITE = {
    "build_env_local": 'def build_env_local(self): return {"dataset": ..., "model": ...}',
    "build_worker_setup_fn": "def build_worker_setup_fn(self): return self.build_env_local",
}
_CONFIG = ("inference_config", "config")
_PARAMS = "params"


@names_places
def check_inference(loaded: "LoadedConfig", *, runs_here: bool = True) -> InferenceConfig:
    """Check all that can be checked without building anything.

    Args:
        loaded: the config.
        runs_here: whether this machine must have what workers need, such as GPUs.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    from espnet3.components.data.data_organizer import check_datasets

    if runs_here:
        check_resources(as_parallel_config(loaded))
    config = load_inference_config(loaded)
    chosen_test_sets(listed_test_sets(config.dataset), config.test_set)
    check_provider(config)
    is_provided = builds_own_dataset(locate(config.provider_target))
    check_datasets(loaded, ("test",), provided=is_provided)
    _check_runner(config)
    for key, why in {**unused_outputs(config, loaded.has), **unused_params(config)}.items():
        # What was typed just now is meant; what stands in a file may serve another runner.
        if loaded.is_typed(key):
            raise ConfigError(key=key, problem=f"has no effect: {why}", fix="Or leave it out.")
        _warn_once(f"{key}{loaded.set_in(key)} has no effect: {why}")
    _check_params(config)
    if config.provider_target == DEFAULT_PROVIDER:
        _check_default_blocks(config, loaded.has)
    if config.output_fn:
        _check_function(config.output_fn)
    if config.results == "parquet":
        from espnet3.io.tables import check_parquet

        check_parquet()
    return config


def _check_function(path: str) -> None:
    definition = find_definition(path)
    if definition is None or not definition.is_intact:
        load_function(path)


def _check_runner(config: InferenceConfig) -> None:
    raise_together(list(_runner_mistakes(config.runner_target, config.runner)))
    target = locate(config.runner_target)
    if not (isinstance(target, type) and issubclass(target, BaseRunner)):
        raise ConfigError(
            key="runner._target_",
            value=config.runner_target,
            problem="which is no BaseRunner",
            fix=f"Write: _target_: {DEFAULT_RUNNER}",
        )


@names_places
def check_runner_block(loaded: "LoadedConfig") -> None:
    """Check what the text of the block tells; a runner of one's own is not imported.

    Raises:
        ConfigError: naming each key, its place, and what to write.
    """
    block = loaded.plain().get("runner")
    if not isinstance(block, Mapping):
        return
    target = str(block.get("_target_", DEFAULT_RUNNER))
    is_there = target == DEFAULT_RUNNER or target.rpartition(".")[0] in sys.modules
    if is_there or find_definition(target) is not None:
        # Others may stand in the block as well, and are checked as keys of their own.
        own = {key: value for key, value in block.items() if key not in (*BATCHING, *OUTPUTS)}
        raise_together(list(_runner_mistakes(target, own)))


def _runner_mistakes(target: str, block: Mapping[str, Any]) -> Iterator[ConfigError]:
    for name, line in _SET_BY_STAGE.items():
        if block.get(name) is not None:
            yield ConfigError(
                key=f"runner.{name}",
                value=block[name],
                problem="but the stage gives it to the runner",
                fix=line.format(value=block[name]),
            )
    yield from _unfit_runner_arguments(target, block)
    on_error = block.get("on_error", "raise")
    if on_error not in ("raise", "skip"):
        fix = "Write: on_error: skip, or on_error: raise"
        yield ConfigError(key="runner.on_error", value=on_error, fix=fix)
    for name in ("resume", "retry_failed"):
        value = block.get(name, True)
        # The text "false" would be true.
        if not isinstance(value, bool):
            fix = f"Write: {name}: true, or {name}: false"
            yield ConfigError(key=f"runner.{name}", value=value, fix=fix)


# Once per process, as the check and the stage both come here.
@cache
def _warn_once(text: str) -> None:
    logger.warning("%s", text)


def _unfit_runner_arguments(target: str, block: Mapping[str, Any]) -> Iterator[ConfigError]:
    of_every = inspect.signature(BaseRunner.__init__).parameters
    for name, value in block.items():
        try:
            check_arguments("runner", target, {name: value}, hidden=_SET_BY_STAGE)
        except ConfigError as error:
            if name not in of_every:
                yield error
                if error.key != f"runner.{name}":
                    return  # there is no such class
                continue
            yield ConfigError(
                key=error.key,
                problem=f"is no argument of {target}",
                fix="It is a setting of every BaseRunner; let the class pass it on: def "
                "__init__(self, provider, **settings): super().__init__(provider, **settings)",
            )


def _check_params(config: InferenceConfig) -> None:
    """Refuse names of `params` that something else has already."""
    keys = [config.input_key] if isinstance(config.input_key, str) else config.input_key
    taken = {
        **dict.fromkeys(keys, "is an input of the model, see input_key"),
        **dict.fromkeys(("idx", "outputs"), "is what the runner itself gives to forward"),
    }
    own = not has_forward_of_ours(locate(config.runner_target))
    for name in config.provider.get("params") or {}:
        if name in taken and not (own and name in keys):
            raise ConfigError(
                key=f"provider.params.{name}",
                problem=taken[name],
                fix=f"Give it another name, or delete it: params: {{my_{name}: ...}}",
            )


def unused_params(config: InferenceConfig) -> dict[str, str]:
    """Return `params` that no hook of a runner of one's own takes, each with the reason."""
    target = locate(config.runner_target)
    provider = locate(config.provider_target)
    if has_forward_of_ours(target) or provider is not locate(DEFAULT_PROVIDER):
        return {}  # the model takes them, or the provider may
    taken: set[str] = set()
    for hook in ("forward", *WRITER_HOOKS):
        parameters = inspect.signature(getattr(target, hook)).parameters.values()
        own = overridden(target, BaseRunner, [hook])
        # With **kwargs of its own, it may take any of them.
        if own and any(p.kind is p.VAR_KEYWORD for p in parameters):
            return {}
        taken |= {p.name for p in parameters}
    names = [name for name in config.provider.get("params") or {} if name not in taken]
    arguments = ", ".join(map(str, inspect.signature(target.forward).parameters.values()))
    return {
        f"provider.params.{name}": f"{target.__name__}.forward does not take it."
        f"{suggest(name, taken)} Write: def forward({arguments}, {name}=None)"
        for name in names
    }


def has_forward_of_ours(target: type) -> bool:
    """Tell whether a runner calls the model as `InferenceRunner` does."""
    from espnet3.systems.base.inference_runner import InferenceRunner

    return writes_fields(target) and not overridden(target, InferenceRunner, ["forward"])


def unused_outputs(config: InferenceConfig, has: Callable[[str], bool]) -> dict[str, str]:
    """Return keys at the top that a runner of one's own does not read, each with the reason."""
    target = locate(config.runner_target)
    given = [key for key in OUTPUTS if has(key) and getattr(config, key) != _default(key)]
    if has_forward_of_ours(target):
        return {}
    if writes_fields(target):
        words = _words_of(target.forward)
        unread = [key for key in ("output_fn", "input_key") if key in given]
        values = {key: {key, *one_or_more(getattr(config, key))} for key in unread}
        why = f"{target.__name__} has a forward of its own, which does not call ours"
        is_read = {"outputs", "forward"} & words
        return {key: why for key in unread if not is_read and not values[key] <= {key, *words}}
    names = argument_names(target)
    why = f"{target.__name__} is no InferenceRunner, and its __init__ does not take it"
    # A provider of one's own may read any key.
    is_ours = config.provider_target == DEFAULT_PROVIDER
    return {key: why for key in given if is_ours and names is not None and key not in names}


def _default(key: str) -> Any:
    return InferenceConfig.model_fields[key].get_default(call_default_factory=True)


def _words_of(function: Any) -> set[str]:
    """Return the names and texts that a function uses."""
    code = getattr(function, "__code__", None)
    found: set[str] = set()
    pending = [code] if code else []
    while pending:
        code = pending.pop()
        # A name proves no use, but its absence proves that there is none.
        found |= {*code.co_names, *code.co_varnames, *(c for c in code.co_consts if type(c) is str)}
        pending += [c for c in code.co_consts if inspect.iscode(c)]
    return found


@dataclass(frozen=True)
class WrittenFields:
    """Fields that `infer` will write, as far as known before it runs."""

    names: tuple[str, ...] | None
    """All of them; None if that shows at the first item."""
    usual: tuple[str, ...] = ()
    """Those of a model that returns a text: hypothesis and reference."""
    why: str = ""
    """What decides on them."""


@names_places
def written_fields(loaded: "LoadedConfig") -> WrittenFields:
    """Tell which fields `infer` will write, each to `<field>.scp`.

    Raises:
        ConfigError: the config is wrong.
    """
    config = load_inference_config(loaded)
    try:
        target = locate(config.runner_target)
    except Exception as error:  # of the user's module; infer itself says more
        return WrittenFields(None, why=f"{config.runner_target} cannot be imported: {error}")
    if not writes_fields(target):
        own = overridden(target, BaseRunner, [*WRITER_HOOKS, "merge"])
        why = f"{target.__name__} writes results.jsonl"
        return (
            WrittenFields(None, why=f"{target.__name__} decides")
            if own
            else WrittenFields((), why=why)
        )
    if _has_own_writers(target):
        return WrittenFields(None, why=f"{target.__name__} decides")
    if config.output_keys is not None:
        names = tuple(key for key in config.output_keys if key != config.idx_key)
        place = loaded.set_in("output_keys") or loaded.set_in("runner.output_keys")
        return WrittenFields(names, why=f"output_keys is [{', '.join(config.output_keys)}]{place}")
    if config.output_fn is not None or not has_forward_of_ours(target):
        what = f"output_fn {config.output_fn}" if config.output_fn else f"{target.__name__}.forward"
        return WrittenFields(None, why=f"{what} decides")
    return WrittenFields(None, (config.hyp_key, config.ref_key), "the model decides")


def _has_own_writers(target: type) -> bool:
    from espnet3.systems.base.inference_runner import InferenceRunner

    return bool(overridden(target, InferenceRunner, [*WRITER_HOOKS, "merge"]))


def _check_default_blocks(config: InferenceConfig, has: Callable[[str], bool]) -> None:
    """Check what `InferenceProvider` builds; providers of users may read these blocks otherwise."""
    for key, example in _EXAMPLES.items():
        if getattr(config, key) is None:
            is_empty = "; is what is below it indented?" if has(key) else ","
            raise ConfigError(
                f"{key} is not set",
                key=key,
                problem=f"{is_empty} InferenceProvider builds it",
                fix=f"Write {key}: {example}, or a provider of your own with build_{key}(config).",
            )
    _check_test_sets(config)
    _check_model(config)


def _check_test_sets(config: InferenceConfig) -> None:
    assert config.dataset is not None
    is_ours = config.dataset.get("_target_", ORGANIZER) == ORGANIZER
    if is_ours and config.test_set is None and not listed_test_sets(config.dataset):
        raise ConfigError(
            key="dataset.test",
            problem="lists no test set",
            fix="Write: test: [{name: dev, data_src: kaldi, data_src_args: {path: data/dev}}]",
        )


def _check_model(config: InferenceConfig) -> None:
    assert config.model is not None
    if "_target_" not in config.model:
        raise ConfigError(
            key="model",
            problem="has no _target_, so what to build is not known",
            fix="Write: _target_: src.model.MyModel",
        )
    # The provider passes `device`, so a model that does not take it is refused here.
    check_arguments("model", config.model["_target_"], {**config.model, "device": "cpu"})


def check_provider(config: InferenceConfig) -> None:
    """Refuse a provider that lacks a method, or cannot be called as `infer` calls it.

    Raises:
        ConfigError: naming the key, its place, and what to write.
    """
    target = _located(config)
    known = argument_names(target)
    if isinstance(target, type):
        lacking = [name for name in _TO_WRITE if not _has(target, name)]
        if lacking:
            others = "; ".join(_TO_WRITE[name] for name in lacking)
            raise _bad_target(config, f"which has no {lacking[0]}()", f"Write in it: {others}")
    for name in (name for name in _CONFIG if name in config.provider):
        raise ConfigError(
            key=f"provider.{name}",
            problem="is set, but the config of the stage is what a provider gets there",
            fix="Values of your own stand under params: provider: {params: {beam_size: 8}}",
        )
    if not _takes_config(target, set(config.provider)):
        fix = "Write in it: def __init__(self, config): self.config = config"
        raise _bad_target(config, "which takes no config", fix)
    if known is not None and _PARAMS in config.provider and _PARAMS not in known:
        raise ConfigError(
            key="provider.params",
            problem=f"is set, but {config.provider_target} takes none",
            fix="Write in it: def __init__(self, config, params=None), and let build_env_local() "
            "return them as well",
        )
    check_arguments("provider", config.provider_target, config.provider)


def provider_arguments(
    target: Any, config: Any, params: dict[str, Any], block: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return how to call a provider: the config first, or by name, and `params` if it takes them.

    Args:
        target: the class, or a function that returns a provider.
        config: what the provider builds from.
        params: of the `provider` block.
        block: its other arguments, which are given by name.
    """
    known = argument_names(target)
    takes_params = known is None or _PARAMS in known
    named = {_PARAMS: params} if params or takes_params else {}
    if _takes_positional(target, {*block, _PARAMS}):
        return (config,), named
    name = _CONFIG[0] if known is not None and "config" not in known else "config"
    return (), {name: config, **named}


def _located(config: InferenceConfig) -> Any:
    try:
        return locate_callable(config.provider_target)
    except BadTarget as bad:
        raise _bad_target(config, f"but {bad}") from None


def _bad_target(config: InferenceConfig, problem: str, fix: str = "") -> ConfigError:
    value = config.provider_target
    return ConfigError(key="provider._target_", value=value, problem=problem, fix=fix)


def _has(target: type, name: str) -> bool:
    # An abstract method exists, and would only fail when the provider is built.
    is_abstract = name in getattr(target, "__abstractmethods__", ())
    return not is_abstract and callable(getattr(target, name, None))


def _takes_config(target: Any, given: set[str]) -> bool:
    known = argument_names(target)
    by_name = known is None or bool(known.intersection(_CONFIG))
    return by_name or _takes_positional(target, {*given, _PARAMS})


def _takes_positional(target: Any, given: set[str]) -> bool:
    """Tell whether there is a positional parameter that the block does not give."""
    signature = signature_of(target)
    if signature is None:
        return True
    first = next(iter(signature.parameters.values()), None)
    if first is None:
        return False
    if first.kind is first.VAR_POSITIONAL:
        return True
    positional = (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD)
    return first.kind in positional and first.name not in given
