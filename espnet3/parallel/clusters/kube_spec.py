"""Description of a DaskCluster, and what is wrong with it, before anything is created."""

import math
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from espnet3.errors import ConfigError, suggest

_CRD = "operator/deployment/helm/dask-kubernetes-operator/crds/daskcluster.yaml"
_TYPES: dict[str, tuple[type, ...]] = {
    "object": (Mapping,),
    "array": (list, tuple),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
}
_WORDS = {"object": "a mapping", "array": "a list", "string": "a text", "boolean": "true or false"}
_AT_ROOT = ("apiVersion", "kind", "metadata")
"""Of every object of Kubernetes; the schema of one kind does not list them."""
_AMOUNTS = ("limits", "requests")
_QUANTITY = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+|[KMGTPE]i|[numkMGTPE])?")
_FACTORS = {
    **{unit: 1000.0**power for power, unit in enumerate("num", -3)},
    **{unit: 1000.0**power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)},
}
_SERVICES = ("ClusterIP", "NodePort", "LoadBalancer")
_WORKER = "spec.worker.spec.containers[0]"
_OPTIONS = {
    f"{_WORKER}.resources": "resources",
    f"{_WORKER}.env": "env",
    f"{_WORKER}.image": "image",
    f"{_WORKER}.volumeMounts": "volume_mounts",
    "spec.worker.spec.volumes": "volumes",
    "spec.idleTimeout": "idle_timeout",
    "spec.scheduler.service.type": "scheduler_service_type",
}
"""The options that become parts of the description."""


class Problem(NamedTuple):
    """Problem at one place of a description."""

    path: str
    told: str
    fix: str = ""


def with_texts(value: Any, name: str = "") -> Any:
    """Return a copy of a description in which numbers are texts where Kubernetes wants those.

    These are amounts of resources at any depth, sizes of volumes and values of variables. YAML
    reads `nvidia.com/gpu: 1` as a number, which the API server refuses.
    """
    if isinstance(value, Mapping):
        is_variable = "name" in value
        return {
            key: _as_text(each)
            if name in _AMOUNTS or key == "sizeLimit" or (key == "value" and is_variable)
            else with_texts(each, str(key))
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [with_texts(each) for each in value]
    return value


def _as_text(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value  # true may mean "true" or "True": the user must say
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def check_spec(spec: dict[str, Any], *, is_custom: bool) -> None:
    """Compare a description with the schema that the installed dask-kubernetes brings.

    Args:
        spec: a DaskCluster.
        is_custom: whether it is `custom_cluster_spec`, and not made of other options.

    Raises:
        ConfigError: with the key of the first problem.
    """
    schema = shipped_schema()
    problems = [
        *(schema_problems(spec, schema) if schema else ()),
        *amount_problems(spec),
        *mount_problems(spec),
        *_service_problems(spec),
    ]
    if problems:
        first = problems[0]
        more = f" ({len(problems) - 1} more)" if len(problems) > 1 else ""
        key = user_key(first.path, is_custom=is_custom)
        raise ConfigError(f"{key} {first.told}{more}.", fix=first.fix)


def user_key(path: str, *, is_custom: bool) -> str:
    """Return the key in the config that a place in the description follows from."""
    if is_custom:
        return f"parallel.options.custom_cluster_spec: {path}"
    for beginning, option in _OPTIONS.items():
        if path.startswith(beginning):
            return f"parallel.options.{option}{path.removeprefix(beginning)}"
    return f"parallel.options: {path} of the DaskCluster"


@cache
def shipped_schema() -> dict[str, Any] | None:
    """Return the schema of a DaskCluster; None if the package has none, or is not installed."""
    import importlib.util

    import yaml

    found = importlib.util.find_spec("dask_kubernetes")
    if found is None or found.origin is None:
        return None
    path = Path(found.origin).parent / _CRD
    if not path.is_file():
        return None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 280 kB: ten times as fast
    definition = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    versions = {each["name"]: each for each in definition["spec"]["versions"]}
    schema: dict[str, Any] = versions["v1"]["schema"]["openAPIV3Schema"]
    return schema


def schema_problems(value: Any, schema: Mapping[str, Any], path: str = "") -> Iterator[Problem]:
    """Yield what the API server would refuse, or drop without a word, as unknown fields."""
    if value is None:
        return  # it removes those
    if schema.get("x-kubernetes-int-or-string"):
        kinds: tuple[type, ...] = (int, str)
    else:
        kinds = _TYPES.get(str(schema.get("type", "")), (object,))
    # A bool is an int for Python, but not for Kubernetes.
    is_right = isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
    if not is_right and kinds != (object,):
        yield _wrong_type(path, value, str(schema.get("type")))
    elif isinstance(value, Mapping):
        yield from _problems_of_fields(value, schema, path)
    elif isinstance(value, list | tuple) and schema.get("items"):
        for number, each in enumerate(value):
            yield from schema_problems(each, schema["items"], f"{path}[{number}]")


def _problems_of_fields(
    value: Mapping[str, Any], schema: Mapping[str, Any], path: str
) -> Iterator[Problem]:
    known = schema.get("properties") or {}
    others = schema.get("additionalProperties")
    for name, each in value.items():
        place = f"{path}.{name}" if path else str(name)
        if name in known:
            yield from schema_problems(each, known[name], place)
        elif isinstance(others, Mapping):
            yield from schema_problems(each, others, place)
        elif known and not others and not _takes_all(schema) and (path or name not in _AT_ROOT):
            hint = suggest(str(name), list(known)).strip()
            yield Problem(place, "is no field of a DaskCluster", hint or _listing(known))
    for name in schema.get("required") or ():
        if value.get(name) is None:
            yield Problem(path or name, f"has no {name}" if path else "is missing")


def _takes_all(schema: Mapping[str, Any]) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def _listing(known: Mapping[str, Any]) -> str:
    return f"Known there: {', '.join(sorted(known))}."


def _wrong_type(path: str, value: Any, kind: str) -> Problem:
    wanted = _WORDS.get(kind, f"a whole {kind}" if kind == "number" else "a whole number")
    is_scalar = isinstance(value, bool | int | float)
    fix = ""
    if kind == "string" and is_scalar:
        spelled = str(value).lower() if isinstance(value, bool) else str(value)
        fix = f'Write it in quotes: "{spelled}"'
    return Problem(path, f"is {value!r}, but must be {wanted}", fix)


def amount_problems(value: Any, path: str = "") -> Iterator[Problem]:
    """Yield amounts that no pod can have: the operator is refused then, and only logs it."""
    if isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from amount_problems(each, f"{path}[{number}]")
    if not isinstance(value, Mapping):
        return
    for name, each in value.items():
        place = f"{path}.{name}" if path else str(name)
        if name == "resources" and isinstance(each, Mapping):
            yield from _problems_of_resources(each, place)
        else:
            yield from amount_problems(each, place)


def _problems_of_resources(resources: Mapping[str, Any], path: str) -> Iterator[Problem]:
    amounts = {kind: resources.get(kind) for kind in _AMOUNTS}
    groups = {kind: each for kind, each in amounts.items() if isinstance(each, Mapping)}
    for kind, group in groups.items():
        for name, amount in group.items():
            if isinstance(amount, str):
                yield from _problems_of_amount(f"{path}.{kind}.{name}", str(name), amount)
    limits = groups.get("limits", {})
    for name, amount in groups.get("requests", {}).items():
        place = f"{path}.requests.{name}"
        asked, most = _number(amount), _number(limits.get(name))
        if asked is not None and most is not None and asked > most:
            told = f"is {amount}, which is more than resources.limits has: {limits[name]}"
            yield Problem(place, told, f'Write: limits: {{{name}: "{amount}"}}')
        elif "/" in name and limits.get(name) != amount:  # such as nvidia.com/gpu
            told = f"is {amount}, but resources.limits has not the same"
            yield Problem(place, told, f'Write: limits: {{{name}: "{amount}"}}')


def _problems_of_amount(path: str, name: str, amount: str) -> Iterator[Problem]:
    value = _number(amount)
    if not _QUANTITY.fullmatch(amount) or value is None:
        yield _no_quantity(path, amount)
    elif value < 0:
        yield Problem(path, f"is {amount}, which is less than nothing")
    elif "/" in name and value % 1:
        told = f"is {amount}, but Kubernetes gives such devices whole"
        yield Problem(path, told, f'Write: {name}: "{math.ceil(value)}"')


def _number(amount: Any) -> float | None:
    """Return a quantity as a number; None if it is none."""
    match = _QUANTITY.fullmatch(amount) if isinstance(amount, str) else None
    if match is None:
        return None
    unit = match[2] or ""
    if unit not in _FACTORS:  # none, or an exponent
        return float(amount)
    return float(amount.removesuffix(unit)) * _FACTORS[unit]


def mount_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield volumes that are mounted and not there: no pod can be made of such a description."""
    parts = spec.get("spec")
    for part in ("worker", "scheduler"):
        pod = _at(parts, part, "spec")
        volumes = {each.get("name") for each in _mappings(pod.get("volumes"))}
        for number, container in enumerate(_mappings(pod.get("containers"))):
            for i, mount in enumerate(_mappings(container.get("volumeMounts"))):
                if mount.get("name") not in volumes:
                    place = f"spec.{part}.spec.containers[{number}].volumeMounts[{i}].name"
                    there = ", ".join(sorted(map(str, volumes))) or "none"
                    told = f"is {mount.get('name')!r}, but there is no such volume"
                    yield Problem(place, told, f"Write it under volumes; there are: {there}")


def _service_problems(spec: Mapping[str, Any]) -> Iterator[Problem]:
    kind = _at(spec.get("spec"), "scheduler", "service").get("type", "ClusterIP")
    if isinstance(kind, str) and kind not in _SERVICES:
        told = f"is {kind!r}, which is no type of a service"
        yield Problem("spec.scheduler.service.type", told, f"Write one of: {', '.join(_SERVICES)}")


def _at(value: Any, *names: str) -> Mapping[str, Any]:
    """Return what is below these names, if all of it are mappings."""
    for name in names:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, Mapping) else {}


def _mappings(values: Any) -> list[Mapping[str, Any]]:
    return [each for each in values or () if isinstance(each, Mapping)]


def _no_quantity(path: str, amount: str) -> Problem:
    told = f"is {amount!r}, which is no amount of Kubernetes"
    match = re.fullmatch(r"(\d+\.?\d*)\s*([KMGTPE])i?[Bb]?", amount, re.IGNORECASE)
    if match:
        return Problem(path, told, f"Write: {match[1]}{match[2].upper()}i")
    return Problem(path, told, "Write a number, with a unit such as m, Mi or Gi: 500m, 32Gi")
