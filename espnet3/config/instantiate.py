"""Build what a config names, a `_target_` or a function, with errors that name the key."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from espnet3.config.resolve import resolved
from espnet3.config.sources import dotted, join_key, value_at
from espnet3.config.targets import (
    BadTarget,
    find_bad_argument,
    locate,
    locate_callable,
    signature_of,
)
from espnet3.config.trust import current_trust
from espnet3.errors import ConfigError, blame
from espnet3.text import first_line

if TYPE_CHECKING:
    from espnet3.config.load import LoadedConfig


def instantiate(
    config: Any, *, key: str = "", loaded: "LoadedConfig | None" = None, **kwargs: Any
) -> Any:
    """Call `hydra.utils.instantiate`: nested targets are built first, None stays None.

    Args:
        config: A DictConfig or ListConfig, dict or list. It is not changed.
        key: Dotted key of `config`, such as `model.encoder`, for the errors.
        loaded: Where the config comes from, so that the errors name file and line.
        **kwargs: Arguments that are added to, or replace, those of the outermost target.

    Raises:
        ConfigError: A target cannot be imported, Hydra forbids it, or its arguments do not fit.
        PackedModelError: It belongs to a packed model, and names code or paths of others.
        Exception: Whatever a target itself raises, with a note that names its key.

    Example:
        >>> instantiate({"_target_": "fractions.Fraction", "numerator": 1}, denominator=4)
        Fraction(1, 4)
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate as hydra_instantiate
    from omegaconf.errors import OmegaConfBaseException

    # Before Hydra imports anything: importing a module runs its code.
    _check_trust(config, key)
    resolved(config, prefix=key, loaded=loaded)  # for its errors
    try:
        return hydra_instantiate(config, **kwargs)
    except (InstantiationException, OmegaConfBaseException) as error:
        failure = error
    # Outside of the except block, so that Hydra's wrapper does not show up in the traceback.
    raised = _Failure.of(failure, config, kwargs, key, loaded).as_error()
    if loaded is not None and isinstance(raised, ConfigError):
        raised.locate(loaded)
    raise raised


def build_function(node: Any, *, key: str) -> Any:
    """Return what a dotted path or a `_target_` stands for; of a class, an instance.

    Raises:
        ConfigError: There is no such thing, or it cannot be called.
    """
    found = find_function(node, key=key)
    if isinstance(node, str) and isinstance(found, type):
        found = instantiate({"_target_": node}, key=key)
    elif isinstance(resolved(node), Mapping):
        found = instantiate(node, key=key)
    if not callable(found):
        raise ConfigError(
            key=key,
            value=found,
            problem=f"of type {type(found).__name__}, which cannot be called",
            fix="Write the dotted path of a function, or a mapping with a _target_.",
        )
    return found


def find_function(node: Any, *, key: str) -> Any:
    """Import what a dotted path names; return what is no path as it is.

    Raises:
        ConfigError: The path leads nowhere.
    """
    if not isinstance(node, str):
        return node
    try:
        return locate(node)
    except BadTarget as bad:
        problem = str(bad).replace("_target_", key.rpartition(".")[2])
        raise ConfigError(key=key, value=node, problem=f"but {problem}") from bad


def _check_trust(config: Any, key: str) -> None:
    trust = current_trust()
    if trust is None:
        return
    if type(config).__module__.startswith("omegaconf."):
        from omegaconf import OmegaConf

        # As text: the check refuses interpolations, and resolving one may read files.
        config = OmegaConf.to_container(config, resolve=False)
    trust.check(config, key)


@dataclass(frozen=True)
class _Failure:
    """A failed instantiation, and the node of the config that failed."""

    error: Exception
    key: str
    node: Mapping[str, Any]
    kwargs: Mapping[str, Any]
    loaded: "LoadedConfig | None"

    @classmethod
    def of(
        cls,
        error: Exception,
        config: Any,
        kwargs: Mapping[str, Any],
        key: str,
        loaded: "LoadedConfig | None",
    ) -> "_Failure":
        """Find the node that the message of Hydra or OmegaConf names."""
        # Only the message of the error has the key of the node that failed.
        match = re.search(r"^ *full_key: (.*)$", str(error), re.MULTILINE)
        full_key = dotted(match.group(1)) if match else ""
        base = dotted(str(config._get_full_key(None))) if hasattr(config, "_get_full_key") else ""
        values = resolved(config)
        inner = _spell_key(values, full_key.removeprefix(base).removeprefix("."))
        own_kwargs = {} if inner else kwargs
        node = {**_node_at(values, inner), **own_kwargs}
        failed_key = join_key(key or base, inner) if inner else key or base
        return cls(error, failed_key, node, own_kwargs, loaded)

    def as_error(self) -> BaseException:
        """Return the error to raise: ours where the reason is known, else the original."""
        message, cause = first_line(self.error), self.error.__cause__
        if message.startswith("Missing mandatory value"):
            return self._open_value()
        # Hydra has one class of error for every failure, so the text must tell them apart.
        is_target = message.startswith(("Error locating target", "Expected a callable target"))
        if is_target:
            return self._bad_target()
        if cause is None or not message.startswith("Error in call to target"):
            return self._cannot_be_built(message)
        # The target's own code may raise one too, and then it is passed on as it is.
        if isinstance(cause, TypeError) and (error := self._bad_arguments(cause)):
            return error
        return self._noted(cause)

    @property
    def _name(self) -> str:
        return self.key or "The config"

    def _cannot_be_built(self, message: str) -> ConfigError:
        # Hydra resolves twice, so an escape is needed on two levels.
        is_escape = message.startswith("Interpolation key")
        hint = r" For a literal ${X} below a _target_, write \\\${X}" if is_escape else ""
        problem = f"{'' if self.key else 'The config '}cannot be built: {message.rstrip('.')}."
        return self._chained(problem=problem, fix=hint)

    def _open_value(self) -> ConfigError:
        return self._chained(
            value="???",
            problem="which stands for a value that you must give",
            fix=f"Write: {self.key.rpartition('.')[2]}: VALUE",
        )

    def _bad_target(self) -> BaseException:
        target = self.node.get("_target_")
        try:
            locate_callable(str(target))
        except BadTarget as bad:
            return self._chained("_target_", value=target, problem=f"but {bad}")
        except Exception as error:
            return self._noted(error)
        return self._chained(problem=f"{'' if self.key else 'The config'}: {self.error}")

    def _bad_arguments(self, cause: TypeError) -> ConfigError | None:
        target = self.node["_target_"]
        signature = signature_of(locate(target) if isinstance(target, str) else target)
        bad = find_bad_argument(signature, self.node) if signature else None
        if bad is None:
            return None
        is_ours = bad.name in self.kwargs
        where = " (passed by the calling code)" if is_ours else ""
        start = f"{self._name} does not fit its target: {bad.reason}{where}"
        error = ConfigError(
            start,
            key="" if is_ours else join_key(self.key, *filter(None, [bad.name])),
            fix=lambda loaded: (
                f"{bad.hint_at(self.key, self.node, loaded)}\nSignature: {target}{signature}"
            ),
        )
        error.__cause__ = cause
        return error

    def _noted(self, error: BaseException) -> BaseException:
        target = self.node.get("_target_")
        place = self.loaded.set_in(self.key) if self.loaded else ""
        note = f"Raised while building {self._name} ({target}){place}."
        blame(error, "" if place else self.key, note)
        return error

    def _chained(self, *names: str, **parts: Any) -> ConfigError:
        error = ConfigError(key=join_key(self.key, *names) if names else self.key, **parts)
        error.__cause__ = self.error
        return error


def _spell_key(values: Any, key: str) -> str:
    """Return `layers.10` for `layers10`, as OmegaConf (2.3) spells the key of a list item."""
    if not key and isinstance(values, list):
        return "0"  # The only key that Hydra leaves out.
    digits = len(key) - len(re.findall(r"\d*$", key)[0])
    splits = (f"{key[:i]}.{key[i:]}" for i in range(digits, len(key)))
    return next((k for k in (key, *splits) if _node_at(values, k)), key)


def _node_at(values: Any, key: str) -> Mapping[str, Any]:
    found = value_at(values, key) if key else values
    return found if isinstance(found, Mapping) else {}
