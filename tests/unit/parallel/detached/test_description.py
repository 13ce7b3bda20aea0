"""What a run folder tells workers that have nothing else, and whose code they load."""

import getpass
import importlib
import json
import os
import pickle
import pickletools
import subprocess
import sys
from dataclasses import replace

import pytest

from espnet3.errors import ProviderError, RunFolderError, StaleRunError
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.config import ParallelConfig
from espnet3.parallel.detached.description import (
    add_to_sys_path,
    check_code,
    load_runner,
    load_spec,
    load_trusted,
    write_description,
)
from espnet3.parallel.faults import FaultPolicy
from espnet3.shards.manifest import load_manifest
from espnet3.shards.records import RecordPaths
from tests.helpers.phrases import RERUN

_CONFIG = ParallelConfig(env="slurm", n_workers=3, options={"cores": 1, "memory": "1GB"})
_POLICY = FaultPolicy(skip_errors=True, retries=1)


def load_code(root, **trust):
    return load_spec(root, **trust), load_runner(root, **trust)


class Numbers:
    def build_env_local(self):
        return {"factor": 3}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Times(BaseRunner):
    @staticmethod
    def forward(idx, factor):
        return idx * factor


def describe(root, runner=None):
    runner = runner or Times(Numbers(), output_dir=root)
    if load_manifest(root) is None:
        Times(Numbers(), output_dir=root)(range(6))
    spec = replace(runner._spec(), setup_fn=runner.provider.build_worker_setup_fn())
    return write_description(root, runner, spec, load_manifest(root), _CONFIG, _POLICY)


def test_a_description_is_read_as_it_was_written(awkward):
    written = describe(awkward)
    read = load_trusted(awkward)
    assert read == written
    assert read.config() == _CONFIG
    assert read.fault_policy() == _POLICY
    assert read.run_id == load_manifest(awkward).run_id


def test_code_comes_back_for_the_folder_as_it_is_now(tmp_path):
    describe(tmp_path / "run")
    os.rename(tmp_path / "run", tmp_path / "moved")
    packed, runner = load_code(tmp_path / "moved")
    spec = pickle.loads(packed)
    assert spec.run_dir == str(tmp_path / "moved")
    assert spec.run_id == load_manifest(tmp_path / "moved").run_id
    assert spec.n_shards == load_manifest(tmp_path / "moved").n_shards
    assert spec.hooks.forward(5, **spec.setup_fn()) == 15
    assert runner.output_dir == tmp_path / "moved"


def test_output_folder_above_the_run_folder_is_kept(tmp_path):
    runner = Times(Numbers(), output_dir=tmp_path, shard_subdir="shards/of it")
    runner(range(2))
    describe(tmp_path / "shards/of it", runner)
    assert load_code(tmp_path / "shards/of it")[1].output_dir == tmp_path


def test_packed_spec_does_not_import_the_users_modules(tmp_path):
    module = tmp_path / "their_parts.py"
    module.write_text(
        "from espnet3.parallel.base_runner import BaseRunner\n"
        "class Provider:\n"
        "    def build_env_local(self): return {}\n"
        "    def build_worker_setup_fn(self): return self.build_env_local\n"
        "class Runner(BaseRunner):\n"
        "    @staticmethod\n"
        "    def forward(idx): return idx\n"
    )
    root = tmp_path / "run"
    sys.path.insert(0, str(tmp_path))
    try:
        import their_parts

        runner = their_parts.Runner(their_parts.Provider(), output_dir=root)
        description = describe(root, runner)
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("their_parts", None)
    assert list(description.code) == [str(module)]
    load_spec(root)
    assert "their_parts" not in sys.modules

    check_code(description, root)
    module.write_text(module.read_text() + "\nBEAM = 4\n")
    with pytest.raises(
        StaleRunError, match=r"their_parts\.py changed since.*espnet3 resume /.*run ;"
    ):
        check_code(description, root)
    module.unlink()
    # Others may see it: this is no reason to stop the run.
    with pytest.raises(RunFolderError, match=r"their_parts\.py, .* cannot be read on"):
        check_code(description, root)


def test_a_run_of_a_waiting_program_says_to_run_it_again(tmp_path):
    Times(Numbers(), output_dir=tmp_path)(range(2))
    with pytest.raises(RunFolderError, match=RERUN):
        load_trusted(tmp_path)
    with pytest.raises(RunFolderError, match=r"no manifest.json"):
        load_trusted(tmp_path / "elsewhere")


def test_a_damaged_description_says_what_to_do(tmp_path):
    describe(tmp_path)
    RecordPaths(tmp_path).run.write_text("{")
    with pytest.raises(RunFolderError, match="writes the file again"):
        load_trusted(tmp_path)


def test_unknown_keys_of_a_later_version_are_left_alone(tmp_path):
    written = describe(tmp_path)
    path = RecordPaths(tmp_path).run
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert load_trusted(tmp_path) == written


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("name", ["code", "run"])
def test_code_of_another_user_is_loaded_only_if_they_are_named(tmp_path, name):
    describe(tmp_path)
    os.chown(getattr(RecordPaths(tmp_path), name), 1, -1)
    with pytest.raises(RunFolderError, match=r"belongs to daemon.*add: --trust daemon"):
        load_code(tmp_path)
    with pytest.raises(RunFolderError, match="--trust daemon"):
        load_code(tmp_path, trust="nobody")
    assert load_code(tmp_path, trust="daemon")[1].on_error == "raise"


def test_code_that_anybody_may_write_is_refused(tmp_path):
    describe(tmp_path)
    code = RecordPaths(tmp_path).code
    assert code.stat().st_mode & 0o777 == 0o600
    code.chmod(0o666)
    with pytest.raises(RunFolderError, match=r"its mode is 666.*chmod go-w"):
        load_code(tmp_path)
    load_code(tmp_path, trust=getpass.getuser())


def test_the_users_folders_stand_where_they_stood(tmp_path, monkeypatch):
    written = describe(tmp_path)
    theirs = ["/their/script", "/their/lib/python311.zip", "/their/lib", "/their/editable"]
    monkeypatch.setattr(sys, "path", ["", "/our/lib/python311.zip", "/our/lib"])
    add_to_sys_path(replace(written, sys_path=theirs))
    assert sys.path == ["/their/script", "", "/our/lib/python311.zip", "/our/lib", *theirs[1:]]


def test_a_loose_umask_does_not_matter(tmp_path):
    before = os.umask(0)
    try:
        describe(tmp_path)
    finally:
        os.umask(before)
    assert RecordPaths(tmp_path).code.stat().st_mode & 0o022 == 0
    load_code(tmp_path)  # which refuses what others may write


def test_damaged_code_says_what_to_do(tmp_path):
    describe(tmp_path)
    RecordPaths(tmp_path).code.write_bytes(b"no pickle")
    with pytest.raises(RunFolderError, match="writes the file again"):
        load_code(tmp_path)


def test_another_python_is_refused_with_the_right_one(tmp_path):
    describe(tmp_path)
    path = RecordPaths(tmp_path).run
    values = json.loads(path.read_text())
    values["versions"]["python"] = "3.2.1"
    path.write_text(json.dumps(values))
    with pytest.raises(RunFolderError, match=r"written by Python 3\.2\.1.*Use the same"):
        load_code(tmp_path)


def test_a_runner_that_cannot_be_written_is_named(tmp_path):
    runner = Times(Numbers(), output_dir=tmp_path)
    runner.lock = __import__("threading").Lock()
    with pytest.raises(ProviderError, match=r"Times cannot be written.*parallel.mode: sync"):
        describe(tmp_path, runner)


def test_a_script_of_its_own_travels_by_value(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from dataclasses import replace; from pathlib import Path; import sys\n"
        "from espnet3.parallel.base_runner import BaseRunner\n"
        "from espnet3.parallel.config import ParallelConfig\n"
        "from espnet3.parallel.detached.description import write_description\n"
        "from espnet3.parallel.faults import FaultPolicy\n"
        "from espnet3.shards.manifest import load_manifest\n"
        "class Provider:\n"
        "    def build_env_local(self): return {}\n"
        "    def build_worker_setup_fn(self): return self.build_env_local\n"
        "class Runner(BaseRunner):\n"
        "    @staticmethod\n"
        "    def forward(idx): return idx + 1\n"
        "root = Path(sys.argv[1])\n"
        "runner = Runner(Provider(), output_dir=root)\n"
        "runner(range(3))\n"
        "spec = replace(runner._spec(), setup_fn=runner.provider.build_worker_setup_fn())\n"
        "write_description(root, runner, spec, load_manifest(root), ParallelConfig(),\n"
        "                  FaultPolicy())\n"
    )
    root = tmp_path / "run"
    subprocess.run([sys.executable, script, root], check=True, timeout=120, cwd=tmp_path)
    script.unlink()
    packed, runner = load_code(root)
    assert pickle.loads(packed).hooks.forward(4) == 5
    assert type(runner).__name__ == "Runner"
    assert load_trusted(root).code == {}


def test_modules_that_the_runner_imports_or_the_config_names_are_looked_after(
    tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(tmp_path)
    texts = {
        "their_runner": "from espnet3.parallel import BaseRunner\nfrom their_words import finish\n"
        "class Provider:\n"
        "    def __init__(self): self.config = {'model': {'_target_': 'their_' + 'model.Net'}}\n"
        "    def build_env_local(self): return {}\n"
        "    def build_worker_setup_fn(self): return dict\n"
        "class Runner(BaseRunner):\n"
        "    @staticmethod\n"
        "    def forward(idx): return finish(idx)\n",
        "their_words": "def finish(x): return x\n",
        "their_model": "class Net: ...\n",
        "their_notes": "",
    }
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    module = importlib.import_module("their_runner")
    try:
        runner = module.Runner(module.Provider(), output_dir=tmp_path / "run")
        described = describe(tmp_path / "run", runner)
    finally:
        for name in texts:
            sys.modules.pop(name, None)
    names = ("their_model", "their_runner", "their_words")
    assert sorted(described.code) == [str(tmp_path / f"{name}.py") for name in names]


def test_the_process_that_runs_items_needs_no_module_of_detached_runs(tmp_path):
    describe(tmp_path)
    operations = pickletools.genops(load_spec(tmp_path))
    first = next(argument for _, argument, _ in operations if isinstance(argument, str))
    assert first == "espnet3.parallel.tasks"  # that of descriptions imports pydantic
