"""What an import and the command line load, and how long that takes."""

import json
import resource
import subprocess
import sys
from collections.abc import Iterator

from benchmarks.figures import Figure, best_of

HEAVY = ("torch", "dask", "distributed", "lightning")
_STARTS = {
    "import espnet3.parallel": "import espnet3.parallel",
    "BaseRunner and set_parallel": "from espnet3.parallel import BaseRunner, set_parallel",
    "espnet3 --help": (
        "import contextlib, io, sys; sys.argv[:] = ['espnet3', '--help']\n"
        "from espnet3.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main()"
    ),
}
_LEAST = "import omegaconf, pydantic"
_TEST = "test_seen.jsonl"
_REPORT = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"


def loaded_modules(code: str) -> list[str]:
    """Return the names of all modules that are loaded after running the code."""
    names: list[str] = json.loads(_run(code + _REPORT).splitlines()[-1])
    return names


def _run(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def measure() -> Iterator[Figure]:
    """Count the heavy packages that are loaded, and time the start against that of Python."""
    for what, code in _STARTS.items():
        yield _loaded(what, code)
        ours, plain = best_of(3, lambda code=code: _run(code), lambda: _run("pass"))
        yield Figure(f"{what}; against python -c pass", ours * 1e3, "ms", plain * 1e3)
    yield from measure_recipe()


def measure_recipe() -> Iterator[Figure]:
    """Count and time calls of a recipe that do no work: a wrong key, and all is done already."""
    from benchmarks.digits_recipe import digits_recipe

    with digits_recipe(n_train=10, n_test=5) as recipe:
        own = recipe.decoding_overrides("default", "greedy", str(recipe.data_dir / _TEST))
        infer = ["--stages", "infer", "--inference_config", "conf/inference.yaml", *own]
        train = ["--stages", "train", "--training_config", "conf/training.yaml"]
        _run(_recipe_call([*infer, "parallel.n_workers=1"]))
        calls = {
            "a misspelt key": (train, "optimizerr.lr=0.1", 4.0),
            "a misspelt argument of an optimizer": (train, "optimizer.lrr=0.1", 4.0),
            "a misspelt argument of a model": (infer, "model.weightss=x", 6.0),
            "infer with nothing to do": (infer, "parallel.n_workers=1", 10.0),
        }
        for what, (words, added, limit) in calls.items():
            code = _recipe_call([*words, added])
            yield _loaded(f"run.py, {what}", code)
            yield _cpu_time(f"run.py, {what}", code, limit)


def _recipe_call(words: list[str]) -> str:
    """Return code that calls `run.py` of the recipe, and lets it end as it likes."""
    from benchmarks.digits_recipe import RECIPE

    script = str(RECIPE / "run.py")
    return (
        "import contextlib, io, os, runpy, sys\n"
        f"os.chdir({str(RECIPE)!r}); sys.argv[:] = {[script, *words]!r}\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        f"    runpy.run_path({script!r}, run_name='__main__')"
    )


def _loaded(what: str, code: str) -> Figure:
    found = sorted(set(HEAVY) & set(loaded_modules(code)))
    named = f" ({', '.join(found)})" if found else ""
    return Figure(f"{what}: heavy packages loaded{named}", len(found), "", limit=0)


def _cpu_time(what: str, code: str, limit: float) -> Figure:
    """Compare with the least that a program with our configs imports, round by round."""
    ours, least = float("inf"), float("inf")
    for _ in range(4):
        ours, least = min(ours, _cpu_seconds(code)), min(least, _cpu_seconds(_LEAST))
    label = f"{what}: CPU time; against import omegaconf, pydantic"
    return Figure(label, ours * 1e3, "ms", least * 1e3, limit)


def _cpu_seconds(code: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _run(code)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
