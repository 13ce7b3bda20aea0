"""Check that the packages of a backend are installed in compatible versions."""

from collections.abc import Iterable, Iterator, Sequence
from importlib import metadata
from typing import TYPE_CHECKING

from espnet3.errors import MissingExtraError
from espnet3.findings import Finding, never_raises

if TYPE_CHECKING:
    from packaging.requirements import Requirement

    from espnet3.parallel.config import ParallelConfig

_DASK = ("dask", "distributed")
_PACKAGES = {"local_gpu": ("dask-cuda",), "kube": ("dask-kubernetes",), "ssh": ("asyncssh",)}
_OPTIONAL = {"dask-cuda"}
"""Without it, workers are pinned to GPUs by ourselves."""

_INSTALL = "In your clone of ESPnet3: pip install -c constraints.txt"


@never_raises("packages")
def check_versions(config: "ParallelConfig", others: Sequence[str] = ()) -> list[Finding]:
    """Compare what is installed with what we need, and with what the backend's package needs.

    Args:
        config: names the backend.
        others: packages beside those of the backend, such as `lightning`.
    """
    wanted = [*_DASK, *_packages(config.env), *others]
    found = {name: version for name in wanted if (version := installed(name))}
    missing = [name for name in wanted if name not in found and name not in _OPTIONAL]
    findings = [_missing(config.env, name) for name in missing] or _import(config)
    findings += _misfits("espnet3", found, "problem")
    for name in found:
        if name not in _DASK:
            findings += _misfits(name, found, "warning")
    if found.get("dask") != found.get("distributed"):
        findings.append(_unequal(found))
    if not findings:
        told = ", ".join(f"{name} {version}" for name, version in found.items())
        findings.append(Finding("ok", "packages", told))
    return findings


def installed(name: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _packages(env: str) -> tuple[str, ...]:
    from espnet3.parallel.clusters.table import BACKENDS

    if BACKENDS[env].module == "jobqueue":
        return ("dask-jobqueue",)
    return _PACKAGES.get(env, ())


def _import(config: "ParallelConfig") -> list[Finding]:
    """Import the cluster class, as the start of a run does."""
    from espnet3.parallel.clusters.table import BACKENDS, cluster_class

    backend = BACKENDS[config.env]
    # dask-jobqueue is imported with care, when a job script is rendered: it changes Ctrl-C.
    if not backend.cluster or backend.module == "jobqueue" or config.env == "local_gpu":
        return []
    try:
        cluster_class(config.env, backend)
    except MissingExtraError as error:
        return [Finding.of("packages", error)]
    return []


def _missing(env: str, name: str) -> Finding:
    from espnet3.parallel.clusters.table import BACKENDS

    by_backend = name in _packages(env)
    told = f"{name} is not installed" + (f", and parallel.env: {env} needs it" * by_backend)
    what = BACKENDS[env].install if by_backend else name
    return Finding("problem", "packages", told, f"{_INSTALL} {what}")


def _misfits(package: str, found: dict[str, str], level: str) -> Iterator[Finding]:
    """Yield what a package asks of the others and does not get."""
    for requirement in _requirements(package):
        version = found.get(_spelled(requirement.name))
        if version is None or requirement.specifier.contains(version, prereleases=True):
            continue
        told = (
            f"{package} {installed(package)} asks for {requirement.name}{requirement.specifier}, "
            f"but {requirement.name} is {version}"
        )
        fix = f"{_INSTALL} '{requirement.name}{requirement.specifier}'"
        yield Finding("problem" if level == "problem" else "warning", "packages", told, fix)


def _requirements(package: str) -> Iterator["Requirement"]:
    from packaging.requirements import Requirement

    try:
        texts: Iterable[str] = metadata.requires(package) or ()
    except metadata.PackageNotFoundError:
        return
    for text in texts:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            yield requirement
            if requirement.name.startswith("rapids-"):  # holds the versions for dask-cuda
                yield from _requirements(requirement.name)


def _spelled(name: str) -> str:
    return name.lower().replace("_", "-")


def _unequal(found: dict[str, str]) -> Finding:
    dask, distributed = found.get("dask"), found.get("distributed")
    return Finding(
        "problem",
        "packages",
        f"dask is {dask} and distributed is {distributed}, but they must be of one release",
        f"{_INSTALL} 'dask[distributed]'",
    )
