"""What counts as a change of a run, and what does not."""

from omegaconf import OmegaConf

from espnet3.config.fingerprint import files_in
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.identity import changes, describe_code, describe_run
from espnet3.shards.manifest import Manifest


class Provider:
    fingerprint_ignore = ("config.log_file",)

    def __init__(self, config, **params):
        self.config = config
        self.params = params

    def build_env_local(self):
        return {}

    def build_worker_setup_fn(self):
        return dict


class Runner(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


def describe(config=None, *, items=range(3), batch_size=None, **params):
    return describe_run(Runner(Provider(config or {}, **params), batch_size), items)


def manifest_of(described):
    return Manifest({}, 3, [0, 3], [3.0], None, dict(described), files_in(described), "run")


def test_equal_runs_have_no_changes():
    described = describe({"a": {"b": [1, 2]}}, beam=8)
    assert changes(manifest_of(described), describe({"a": {"b": [1, 2]}}, beam=8)) == []


def test_a_config_may_be_a_dict_or_a_dictconfig():
    described = describe({"a": {"b": [1, 2]}})
    assert changes(manifest_of(described), describe(OmegaConf.create({"a": {"b": [1, 2]}}))) == []


def test_each_change_is_one_line_with_its_key():
    before = manifest_of(describe({"lm": {"weight": 0.3}}, beam=5))
    after = describe({"lm": {"weight": 0.5}}, beam=8, items=range(4), batch_size=2)
    keys = [line.split(":")[0] for line in changes(before, after)]
    assert keys == ["batch_size", "config.lm.weight", "items", "params.beam"]


def test_where_and_how_fast_it_runs_is_no_change():
    before = manifest_of(describe({"parallel": {"env": "local"}, "device": "cpu"}))
    after = describe({"parallel": {"env": "slurm"}, "parallel_gpu": {}, "device": "cuda:1"})
    assert changes(before, after) == []


def test_a_provider_can_name_keys_that_do_not_count():
    before = manifest_of(describe({"log_file": "a"}))
    assert changes(before, describe({"log_file": "b"})) == []


def test_a_list_and_a_range_of_the_same_items_are_the_same():
    assert describe(items=range(3)) == describe(items=range(0, 3, 1))


def test_a_file_that_is_gone_or_has_other_content_is_told(tmp_path):
    model = tmp_path / "model.pt"
    model.write_bytes(b"one")
    described = describe({"model": str(model)})
    before = manifest_of(described)
    model.write_bytes(b"two, longer")
    assert changes(before, described) == [
        f"config.model: the file {model} has other content (3 bytes then, 11 bytes now)"
    ]
    model.unlink()
    assert changes(before, described) == [f"config.model: the file {model} is gone"]


def test_the_digest_ignores_comments_layout_and_docstrings(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def load(name, body):
        (tmp_path / f"{name}.py").write_text(f"class R:\n{body}")
        return __import__(name).R

    plain = load("digest_plain", "    @staticmethod\n    def forward(idx):\n        return idx\n")
    same = load(
        "digest_same",
        '    """Doc."""\n\n    @staticmethod\n    def forward( idx ):\n'
        '        """Doc."""\n        # why\n        return (idx)\n',
    )
    other = load("digest_other", "    @staticmethod\n    def forward(idx):\n        return -idx\n")
    assert describe_code(plain) == describe_code(same) != describe_code(other)


def test_a_change_in_a_users_base_class_counts(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, sign in (("base_one", ""), ("base_two", "-")):
        (tmp_path / f"{name}.py").write_text(
            f"class Base:\n    @staticmethod\n    def forward(idx): return {sign}idx\n"
            "class R(Base): pass\n"
        )
    assert describe_code(__import__("base_one").R) != describe_code(__import__("base_two").R)


def test_classes_without_source_are_told_apart_by_their_code():
    def make(body):
        scope = {"__name__": "typed"}
        exec(f"class R:\n    @staticmethod\n    def forward(idx): return {body}\n", scope)
        return scope["R"]

    assert describe_code(make("idx + 1")) == describe_code(make("idx + 1"))
    assert describe_code(make("idx + 1")) != describe_code(make("idx + 2"))


def test_all_of_a_module_counts_definition_by_definition(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)

    def load(name, beam=5, other=1, body="x"):
        (tmp_path / f"{name}.py").write_text(
            f"import os\nBEAM = {beam}\nOTHER = {other}\nTABLE = list(range(5000))\n"
            f"def post(x):\n    return inner({body})\n\ndef inner(x): return x, BEAM, os, TABLE\n"
            "class R:\n    @staticmethod\n    def forward(idx): return post(idx)\n"
        )
        return describe_code(__import__(name).R)

    plain = load("globals_plain")
    assert sorted(plain) == ["BEAM", "OTHER", "R", "R.forward", "TABLE", "inner", "post"]
    assert load("globals_other", other=2) == {**plain, "OTHER": 2}
    assert load("globals_beam", beam=8) == {**plain, "BEAM": 8}
    other = load("globals_body", body="-x")
    assert [key for key in plain if plain[key] != other[key]] == ["post"]


def test_changed_code_is_told_in_words():
    digests = {
        "runner.code.post": "0" * 16,
        "code.src.a.f": "value " + "0" * 16,
        "code.b": "2" * 16,
    }
    before = manifest_of({**describe(), **digests, "code.src.a.BEAM": 4})
    after = {**digests, "runner.code.post": "1" * 16, "code.src.a.f": "value " + "1" * 16}
    after = {**describe(), **after, "code.src.a.BEAM": 8, "code.c": "3" * 16}
    del after["code.b"]
    assert changes(before, after) == [
        "code.b: the code is gone", "code.c: the code is new", "code.src.a.BEAM: 4 -> 8",
        "code.src.a.f: the value changed", "runner.code.post: the code changed",
    ]  # fmt: skip


def test_each_definition_is_named_once():
    described = describe()
    runner = {key.removeprefix("runner.code.") for key in described if key.startswith("runner.")}
    provider = {k.removeprefix("provider.code.") for k in described if k.startswith("provider.")}
    assert "Runner.forward" in runner
    assert not runner & provider


def test_what_a_target_in_the_config_names_counts_without_being_imported(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    name = "named_in_a_config"
    module = (tmp_path / name).with_suffix(".py")
    module.write_text("raise RuntimeError\n\n\nclass Net:\n    size = 4\n")
    # In two parts, or this very module would name it.
    described = describe({"model": {"_target_": f"{name}.Net"}})
    assert described[f"code.{name}.Net.size"] == 4


def test_a_function_and_a_module_of_one_name_both_count(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "same_words.py").write_text("print(end='')\n")
    (tmp_path / "same_runner.py").write_text(
        "import same_words as other\nfrom espnet3.parallel import BaseRunner\n"
        "def same_words(): return other\n"
        "class R(BaseRunner):\n    @staticmethod\n    def forward(idx): return same_words()\n"
    )
    runner = __import__("same_runner").R(Provider({}))
    assert {"runner.code.same_words", "runner.code.same_words~"} <= describe_run(runner, [1]).keys()
