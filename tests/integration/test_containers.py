"""docs/containers.md: jobs start their worker through the runtime of a container."""

import json
import re
import sys

import yaml

from espnet3.parallel import BaseRunner, use_parallel
from tests.helpers.pages import DOCS, ROOT, blocks
from tests.helpers.slurm_stand_in import write_command

PAGE = DOCS / "containers.md"
# Takes the options and the image, and starts the Python of these tests in place of the image's.
RUNTIME = """
echo "$@" >>"$0.called"
[ "$1" = exec ] || exit 2
shift
while case $1 in --bind) shift 2;; --*) shift;; *) false;; esac; do :; done
[ "$1" = /shared/images/espnet3.sif ] && [ "$2" = python ] || exit 3
shift 2
IN_IMAGE=yes exec {python} "$@"
"""


class Provider:
    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return self.build_env_local


class Where(BaseRunner):
    @staticmethod
    def forward(idx):
        import os

        return {"idx": idx, "image": os.environ.get("IN_IMAGE"), "module": os.environ.get("LOADED")}


def test_workers_of_the_block_run_inside_the_image(tmp_path, monkeypatch):
    run = 'setsid bash "$0.$$" >"$0.$$.log" 2>&1 & echo "Submitted batch job $!"'
    write_command(tmp_path / "sbatch", f'cp "$1" "$0.$$"; {run}')
    write_command(tmp_path / "scancel", 'for job; do kill -- "-$job"; done; true')
    write_command(tmp_path / "apptainer", RUNTIME.format(python=sys.executable))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (block,) = blocks(PAGE, "yaml")
    parallel = yaml.safe_load(block.text)["parallel"]
    parallel["n_workers"] = 1
    # Jobs are processes of this machine, where there is no `module`.
    parallel["options"] |= {"interface": "lo", "cores": 1, "memory": "1GB"}
    lines = parallel["options"]["job_script_prologue"]
    lines.insert(0, "module() { export LOADED=$2; }")
    with use_parallel(parallel):
        merged = Where(Provider(), output_dir=tmp_path / "out")(range(4))
    results = [json.loads(line) for line in merged.read_text().splitlines()]
    assert results == [{"idx": i, "image": "yes", "module": "apptainer"} for i in range(4)]
    (called,) = (tmp_path / "apptainer.called").read_text().splitlines()
    assert called.startswith("exec --nv --bind /shared /shared/images/espnet3.sif python -m")


def test_the_images_install_what_the_package_needs():
    dockerfile = (ROOT / "containers/Dockerfile").read_text()
    definition = (ROOT / "containers/espnet3.def").read_text()
    copied = set(re.findall(r"^COPY (.*) \S+$", dockerfile, re.MULTILINE))
    names = {name for line in copied for name in line.split()}
    listed = set(re.findall(r"^    (\S+) /opt/espnet3/", definition, re.MULTILINE))
    assert names == listed
    assert [name for name in names if not (ROOT / name).exists()] == []
    # hatchling reads these from pyproject.toml when it builds.
    assert {"pyproject.toml", "README.md", "LICENSE", "espnet3", "egs3"} <= names
    for text in (dockerfile, definition):
        assert "-c constraints.txt" in text
