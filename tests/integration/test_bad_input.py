"""Mistakes are told before anything runs: what is wrong, where, and what to write."""

import logging
import sys
import time

import pytest
from omegaconf import OmegaConf

from espnet3.config.load import load_config
from espnet3.errors import (
    ConfigError,
    ItemError,
    MissingExtraError,
    ProviderError,
    ResourceError,
)
from espnet3.parallel import (
    BaseRunner,
    Failure,
    get_client,
    get_parallel_config,
    parallel_map,
    set_parallel,
    use_parallel,
)


@pytest.mark.parametrize(
    ("block", "told"),
    [
        ({"env": "slrum"}, "Did you mean 'slurm'?"),
        ({"env": "nowhere"}, "Known: local, local_gpu, slurm, pbs, sge, lsf"),
        ({"n_workers": 0}, "parallel.n_workers is 0"),
        ({"n_workers": -2}, "greater than 0"),
        ({"n_workers": "4"}, "parallel.n_workers is '4'"),
        ({"n_wokers": 4}, "parallel.n_wokers is not a known key. Did you mean 'n_workers'?"),
        ({"option": {}}, "Did you mean 'options'?"),
        ({"shards_per_worker": 0}, "parallel.shards_per_worker is 0"),
        ({"env": "slurm", "options": {"walltime": 43200}}, 'walltime: "12:00:00"'),
        ({"mode": "asynch"}, "parallel.mode is 'asynch'"),
        ({"env": "ssh", "mode": "async"}, "write mode: sync, or one of env: local"),
        ("local", "parallel"),
        ({"parallel": {"env": "local"}}, "set_parallel(config.parallel)"),
    ],
)
def test_a_wrong_parallel_block_is_refused_with_what_to_write(block, told):
    with pytest.raises(ConfigError) as error:
        set_parallel(block)
    assert told in str(error.value)


def test_an_unquoted_walltime_in_yaml_is_named():
    block = OmegaConf.create("env: slurm\noptions:\n  walltime: 12:00:00\n  cores: 1\n")
    with pytest.raises(ConfigError, match='quote it: walltime: "12:00:00"'):
        set_parallel(block)


def test_a_loaded_config_lets_errors_name_file_and_line(tmp_path):
    path = tmp_path / "parallel_slurm.yaml"
    path.write_text("parallel:\n  env: local\n  n_wokers: 4\n")
    with pytest.raises(
        ConfigError, match=r"parallel\.n_wokers .*parallel_slurm\.yaml:3.*n_workers: 4"
    ):
        set_parallel(load_config(path))
    path.write_text("parallel: {env: local, n_workers: 3}\nbeam: 5\n")
    set_parallel(load_config(path, ["parallel.n_workers=2"]))
    assert get_parallel_config().n_workers == 2


def test_set_parallel_copies_and_accepts_a_dictconfig_and_none():
    block = OmegaConf.create({"env": "local", "n_workers": 3, "options": {"a": [1]}})
    set_parallel(block)
    assert OmegaConf.to_container(block) == {"env": "local", "n_workers": 3, "options": {"a": [1]}}
    set_parallel(None)


@pytest.mark.parametrize(
    ("env", "install"),
    [("ssh", "-e '.[ssh]'"), ("kube", "-e '.[kube]'")],
)
def test_a_missing_extra_is_told_with_the_line_that_installs_it(env, install, monkeypatch):
    for package in ("asyncssh", "dask_kubernetes", "dask_kubernetes.operator"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match="pip install") as error:
        with get_client({"env": env, "options": {"image": "registry/espnet3:1"}}):
            pass
    assert install in str(error.value)


@pytest.mark.parametrize(
    ("n_gpus", "advice"), [(2, "Set n_workers: 2"), (0, "Without a GPU, write env: local")]
)
def test_more_workers_than_gpus_are_refused_with_what_to_set(monkeypatch, n_gpus, advice):
    visible = [str(i) for i in range(n_gpus)]
    monkeypatch.setattr("espnet3.parallel.clusters.gpus.visible_gpus", lambda _: visible)
    with pytest.raises(ResourceError, match=rf"n_workers is 4 but {n_gpus} GPU.*{advice}"):
        with get_client({"env": "local_gpu", "n_workers": 4}):
            pass


class Provider:
    def __init__(self, env=None):
        self.env = env or {}

    def build_env_local(self):
        return self.env

    def build_worker_setup_fn(self):
        env = self.env
        return lambda: env


class Echo(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


class NotStatic(BaseRunner):
    def forward(self, idx):
        return idx


both = pytest.mark.parametrize("n_workers", [1, 2])


@both
def test_a_forward_that_is_not_static_is_told(n_workers):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ProviderError, match="write @staticmethod above 'def forward'"):
            NotStatic(Provider())(range(3))


@both
def test_a_provider_that_raises_is_told_with_its_error(n_workers):
    class Broken(Provider):
        def build_env_local(self):
            raise OSError("checkpoint is missing")

        def build_worker_setup_fn(self):
            return self.build_env_local

    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ProviderError, match="checkpoint is missing"):
            Echo(Broken())(range(3))


@both
def test_a_provider_that_returns_no_dict_is_told(n_workers):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ProviderError, match="returned list, but must return a dict"):
            Echo(Provider(["dataset"]))(range(3))


@both
def test_a_large_object_is_refused_by_name_and_size(n_workers):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ProviderError, match=r"env\['table'\] is 50\.0 MB.*build functions"):
            Echo(Provider({"table": bytes(50_000_000)}))(range(3))


@both
def test_a_large_object_in_a_closure_is_refused_by_name(n_workers):
    class Closure(Provider):
        def build_worker_setup_fn(self):
            lexicon = bytes(2_000_000)
            return lambda: {"n": len(lexicon)}

    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ProviderError, match=r"'lexicon'.* is 2\.0 MB"):
            Echo(Closure())(range(3))


def test_what_cannot_be_sent_is_named(tmp_path):
    with (tmp_path / "file").open("w") as handle, use_parallel({"n_workers": 2}):
        with pytest.raises(ProviderError, match=r"env\['log'\] cannot be sent to a worker"):
            Echo(Provider({"log": handle}))(range(3))


class NeedsLm(BaseRunner):
    @staticmethod
    def forward(idx, dataset, lmodel):
        return idx


@both
def test_a_forward_that_needs_what_the_provider_does_not_give_is_told(n_workers):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ProviderError, match=r"needs 'lmodel'.*Did you mean 'model'"):
            NeedsLm(Provider({"dataset": 1, "model": 2}))(range(3))


class NoList(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"hyp": "a"}


@both
def test_a_batch_forward_that_returns_no_list_is_told(n_workers):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(
            ProviderError, match="batch of 2 items and returned a dict, of which 'hyp' is str"
        ):
            NoList(Provider(), batch_size=2)(range(4))


@both
def test_a_lambda_works_wherever_it_was_written(n_workers):
    with use_parallel({"n_workers": n_workers}):
        assert parallel_map(lambda x: x * 2, [1, 2, 3]) == [2, 4, 6]


def test_a_result_that_cannot_be_sent_back_is_named():
    class Generators(BaseRunner):
        @staticmethod
        def forward(idx):
            return (x for x in "ab") if idx == 3 else idx

    with use_parallel({"n_workers": 2, "shards_per_worker": 1}):
        with pytest.raises(ProviderError, match="The result of item 3 cannot be sent"):
            Generators(Provider())(range(6))


def test_an_item_given_twice_is_refused_when_outputs_are_written(tmp_path):
    with pytest.raises(ConfigError, match=r"holds 2 twice, at positions 1 and 3.*fromkeys"):
        Echo(Provider(), output_dir=tmp_path)([1, 2, 3, 2])
    assert Echo(Provider())([1, 2, 3, 2]) == [1, 2, 3, 2]


def test_items_may_be_strings(tmp_path):
    out = Echo(Provider(), output_dir=tmp_path)(["a b", "c\nd"])
    assert out.read_text() == '"a b"\n"c\\nd"\n'


def test_no_items_are_no_error(tmp_path):
    assert Echo(Provider())([]) == []
    assert Echo(Provider(), output_dir=tmp_path)([]).read_text() == ""


@pytest.mark.parametrize("size", [0, -1, 2.5, "8", True])
def test_a_wrong_batch_size_is_refused(size):
    with pytest.raises(ConfigError, match="write batch_size=1 or more, or None"):
        Echo(Provider(), batch_size=size)


def test_a_wrong_on_error_is_refused():
    with pytest.raises(ConfigError, match='on_error="raise" or on_error="skip"'):
        Echo(Provider(), on_error="ignore")


def test_costs_of_another_length_are_refused():
    with pytest.raises(ConfigError, match="costs has 2 values for 3 items"):
        Echo(Provider())(range(3), costs=[1, 2])


class Fragile(BaseRunner):
    @staticmethod
    def forward(idx, bad):
        helper(idx, bad)
        return idx


def helper(idx, bad):
    if idx in bad:
        raise KeyError(f"no audio for {idx}")


@both
def test_a_failing_item_is_told_with_shard_item_host_and_the_users_traceback(n_workers, tmp_path):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ItemError) as error:
            Fragile(Provider({"bad": [7]}), output_dir=tmp_path)(range(20))
    told = str(error.value)
    assert "Item 7 (position 7) of shard" in told
    assert "failed on " in told
    assert "KeyError: 'no audio for 7'" in told
    assert "in helper" in told
    assert len(told.splitlines()) < 12
    if n_workers == 2:
        assert "log " in told


@both
def test_skipped_items_have_a_failure_in_place_of_a_result(n_workers):
    with use_parallel({"n_workers": n_workers}):
        results = Fragile(Provider({"bad": [3, 8]}), on_error="skip")(range(10))
    assert [r for r in results if not isinstance(r, Failure)] == [0, 1, 2, 4, 5, 6, 7, 9]
    assert results[3].index == 3
    assert "in helper" in results[3].traceback


@both
def test_more_failures_than_max_errors_stop_the_run(n_workers):
    with use_parallel({"n_workers": n_workers}):
        with pytest.raises(ItemError, match="more than max_errors=2"):
            Fragile(Provider({"bad": range(20)}), on_error="skip", max_errors=2)(range(20))


@both
def test_failed_items_can_be_retried(n_workers, tmp_path):
    marker = tmp_path / "mended"
    runner_args = {"output_dir": tmp_path / "out", "on_error": "skip"}
    provider = Provider({"marker": str(marker)})
    with use_parallel({"n_workers": n_workers}):
        Mendable(provider, **runner_args)(range(20))
        assert len((tmp_path / "out" / "failed.jsonl").read_text().splitlines()) == 1
        marker.touch()
        Mendable(provider, **runner_args)(range(20))
        assert (tmp_path / "out" / "failed.jsonl").exists()
        out = Mendable(provider, **runner_args, retry_failed=True)(range(20))
    assert out.read_text().split() == [str(i) for i in range(20)]
    assert not (tmp_path / "out" / "failed.jsonl").exists()


class Mendable(BaseRunner):
    @staticmethod
    def forward(idx, marker):
        import os

        assert idx != 11 or os.path.exists(marker), "not mended yet"
        return idx


class BadWriter(BaseRunner):
    @staticmethod
    def forward(idx):
        return {"text": "x"} if idx != 4 else {}

    @staticmethod
    def open_writers(shard_dir):
        return (shard_dir / "text").open("w")

    @staticmethod
    def write_record(writers, result, state):
        writers.write("begun ")
        writers.write(result["text"] + "\n")

    @staticmethod
    def close_writers(writers):
        writers.close()


@both
def test_a_record_that_cannot_be_written_leaves_no_half_of_it(n_workers, tmp_path, caplog):
    with use_parallel({"n_workers": n_workers}), caplog.at_level(logging.WARNING, "espnet3"):
        shards = BadWriter(Provider(), output_dir=tmp_path, on_error="skip")(range(10))
    text = "".join((shard / "text").read_text() for shard in shards)
    assert text == "begun x\n" * 9
    assert "overrides open_writers but not merge()" in caplog.text
    with use_parallel({"n_workers": n_workers}), pytest.raises(ItemError, match="KeyError: 'text'"):
        BadWriter(Provider(), output_dir=tmp_path / "raise")(range(10))


def test_a_sys_exit_in_forward_is_a_failed_item_not_the_end_of_the_program():
    class Exits(BaseRunner):
        @staticmethod
        def forward(idx):
            raise SystemExit(f"usage: model [{idx}]")

    with pytest.raises(ItemError, match="SystemExit: usage"):
        Exits(Provider())(range(2))


def test_the_cost_hook_starts_the_longest_first():
    class Timed(BaseRunner):
        def cost(self, idx):
            return 100.0 if idx == 5 else 1.0

        @staticmethod
        def forward(idx):
            return time.monotonic_ns()

    begun = Timed(Provider())(range(10))
    assert min(begun) == begun[5]
