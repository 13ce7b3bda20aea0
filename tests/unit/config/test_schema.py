from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from omegaconf import OmegaConf
from pydantic import Field, PositiveInt, TypeAdapter, ValidationError, model_validator

from espnet3.config.load import LoadedConfig, load_config
from espnet3.config.schema import FrozenConfig, Names, field_docs, validate
from espnet3.config.targets import locate
from espnet3.errors import ConfigError


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


class Retry(FrozenConfig):
    limit: PositiveInt = 3
    type: str = "linear"


class Options(FrozenConfig):
    queue: str = "cpu"
    walltime: str | None = None
    retry: Retry = Retry()


class Parallel(FrozenConfig):
    env: Literal["local", "slurm", "local_gpu"] = "local"
    n_workers: PositiveInt = 1
    """Worker processes to start."""
    timeout: float = 1.5
    resume: bool = True
    log_dir: Path | None = None
    hosts: tuple[str, ...] = ()
    mode: Mode = Mode.FAST
    options: Options = Options()
    retries: list[Retry] = []
    either: Retry | int = 1
    free: dict[str, Any] = {}

    @model_validator(mode="after")
    def check_hosts(self) -> "Parallel":
        if self.hosts and self.env == "local":
            raise ValueError("hosts needs env: slurm. Write: env: slurm")
        return self


class Required(FrozenConfig):
    name: str
    """What the run is called."""


def problem(values: Any, model: type = Parallel, **where: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        validate(model, values, **where)
    return str(caught.value)


@pytest.fixture
def conf(tmp_path):
    path = tmp_path / 'parallel\'s "conf".yaml'

    def load(text: str) -> tuple[LoadedConfig, Path]:
        path.write_text(text)
        return load_config(path), path

    return load


# What is accepted


def test_none_gives_the_defaults():
    assert validate(Parallel, None) == Parallel()
    assert validate(Parallel, OmegaConf.create({"p": None}).p) == Parallel()


def test_yaml_types_become_those_of_the_model():
    values = {"log_dir": "x y", "hosts": ["a"], "mode": "slow", "timeout": 2, "env": "slurm"}
    config = validate(Parallel, OmegaConf.create(values))
    assert config.log_dir == Path("x y")
    assert config.hosts == ("a",)
    assert config.mode is Mode.SLOW
    assert config.timeout == 2.0


def test_a_model_and_its_fields_are_frozen_and_documented():
    config = validate(Parallel, {"n_workers": 2})
    with pytest.raises(ValidationError, match="frozen"):
        config.n_workers = 3
    assert field_docs(Parallel) == {"n_workers": "Worker processes to start."}
    described = Parallel.model_json_schema()["properties"]["n_workers"]["description"]
    assert described == "Worker processes to start."


def test_interpolations_are_resolved_up_to_the_root_of_the_config():
    root = OmegaConf.create({"n": 4, "parallel": {"n_workers": "${n}"}})
    assert validate(Parallel, root.parallel).n_workers == 4
    assert root == {"n": 4, "parallel": {"n_workers": "${n}"}}


def test_a_plain_dict_keeps_shell_variables_as_text():
    values = {"free": {"prologue": ["export A=${HOME}"]}}
    assert validate(Parallel, values).free == values["free"]


def test_a_config_inside_a_plain_dict_is_resolved():
    inner = OmegaConf.create({"a": 1, "b": "${a}"})
    assert validate(Parallel, {"free": inner}).free == {"a": 1, "b": 1}


def test_the_model_shares_nothing_with_the_caller():
    values: dict[str, Any] = {"free": {"a": [1]}}
    config = validate(Parallel, values)
    config.free["a"].append(2)
    config.free["b"] = 1
    assert values == {"free": {"a": [1]}}


# Unknown keys


def test_an_unknown_key_names_its_line_and_the_line_to_paste(conf):
    loaded, path = conf("parallel:\n  env: slurm\n  n_wokers: 4\n")
    assert problem(loaded.config.parallel, prefix="parallel", loaded=loaded) == (
        f"parallel.n_wokers is not a known key (set in {path}:3). "
        "Did you mean 'n_workers'? Write: n_workers: 4"
    )


def test_without_a_loaded_config_no_place_is_named():
    assert problem({"n_wokers": 4}) == (
        "n_wokers is not a known key. Did you mean 'n_workers'? Write: n_workers: 4"
    )


def test_an_unknown_key_three_levels_deep_is_compared_with_the_right_model(conf):
    loaded, path = conf("parallel:\n  options:\n    retry:\n      limt: 4\n")
    message = problem(loaded.config.parallel, prefix="parallel", loaded=loaded)
    assert message.startswith(f"parallel.options.retry.limt is not a known key (set in {path}:4)")
    assert message.endswith("Write: limit: 4")


def test_without_a_close_match_the_known_keys_are_listed():
    message = problem({"options": {"zzz": 1}})
    assert message.endswith("Known keys: queue, retry, walltime.")


def test_an_unknown_key_inside_a_list_is_found():
    message = problem({"retries": [{}, {"limi": [1, 2]}]})
    assert message.startswith("retries.1.limi is not a known key")
    assert message.endswith("Write: limit: [1, 2]")


def test_an_unknown_key_set_on_the_command_line_says_so(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("")
    loaded = load_config(path, ["n_wokers=2"])
    assert "(set in command line: n_wokers=2)" in problem(loaded.config, loaded=loaded)


# Wrong values


def test_a_value_out_of_range_names_value_and_bound(conf):
    loaded, path = conf("parallel: {n_workers: 0}\n")
    assert problem(loaded.config.parallel, prefix="parallel", loaded=loaded) == (
        f"parallel.n_workers is 0 (set in {path}:1), but must be greater than 0. "
        "Write: n_workers: 1"
    )


@pytest.mark.parametrize(
    ("values", "ending"),
    [
        ({"n_workers": "4"}, "must be a valid integer. Write it without quotes: n_workers: 4"),
        (
            {"n_workers": True},
            "n_workers is True, but must be a valid integer. Write: n_workers: 1",
        ),
        (
            {"n_workers": "many"},
            "n_workers is 'many', but must be a valid integer. Write: n_workers: 1",
        ),
        ({"n_workers": 2.5}, "n_workers is 2.5, but must be a valid integer. Write: n_workers: 1"),
        (
            {"n_workers": None},
            "n_workers is None, but must be a valid integer. Write: n_workers: 1",
        ),
        ({"timeout": "2.5"}, "Write it without quotes: timeout: 2.5"),
        ({"resume": "False"}, "Write it without quotes: resume: false"),
        ({"resume": 1}, "resume is 1, but must be a valid boolean. Write: resume: true"),
        ({"options": {"queue": 12}}, 'Quote it: queue: "12"'),
        ({"options": {"retry": {"type": 1.5}}}, 'Quote it: type: "1.5"'),
        ({"options": "gpu"}, "options is 'gpu', but must be a mapping."),
        ({"env": "slrum"}, "must be 'local', 'slurm' or 'local_gpu'. Did you mean 'slurm'?"),
        ({"mode": "fsat"}, "must be 'fast' or 'slow'. Did you mean 'fast'?"),
        ({"hosts": "a"}, "hosts is 'a', but must be a valid tuple."),
    ],
)
def test_a_wrong_type_says_what_to_write(values, ending):
    assert problem(values).endswith(ending)


def test_a_walltime_read_as_a_number_names_the_trap(conf):
    loaded, _ = conf("options:\n  walltime: 43200\n")
    message = problem(loaded.config, loaded=loaded)
    assert message.startswith("options.walltime is 43200 (set in ")


def test_a_required_key_says_where_to_write_it_and_what_it_is():
    class Outer(FrozenConfig):
        run: Required | None = None

    assert problem({"run": {}}, Outer) == (
        "run.name is required but not set (What the run is called.). Write under run: name: VALUE"
    )
    assert problem(None, Required).endswith("Write: name: VALUE")


def test_an_open_value_is_refused(conf):
    loaded, path = conf("options:\n  queue: ???\n")
    assert problem(loaded.config, loaded=loaded) == (
        f"options.queue is '???' (set in {path}:2), which stands for a value that you must give. "
        "Write: queue: VALUE"
    )


def test_the_message_of_a_models_own_check_is_kept():
    message = problem({"hosts": ["a"]}, prefix="parallel")
    assert message == "parallel: hosts needs env: slurm. Write: env: slurm"


def test_a_union_gives_one_line():
    assert problem({"either": "x"}) == (
        "either is 'x', but must be a mapping or must be a valid integer. Write: either: 1"
    )
    assert problem({"either": {"limt": 2}}).endswith("Did you mean 'limit'? Write: limit: 2")


def test_all_problems_are_listed_at_once():
    message = problem({"n_workers": 0, "zzz": 1, "options": {"queue": 3}})
    assert message.startswith("3 problems:\n- ")
    assert message.count("\n- ") == 3


@pytest.mark.parametrize("values", ["local", ["local"], 3])
def test_a_block_that_is_no_mapping_is_refused(values):
    assert problem(values, prefix="parallel") == (f"parallel is {values!r}, but must be a mapping.")


def test_a_long_value_is_shortened():
    assert len(problem({"n_workers": "x" * 10_000})) < 200


def test_an_interpolation_to_nowhere_names_key_and_file(conf):
    loaded, path = conf("parallel:\n  options:\n    queue: ${nowhere.x}\n")
    message = problem(loaded.config.parallel, prefix="parallel", loaded=loaded)
    assert message.startswith(f"parallel.options.queue (set in {path}:3) cannot be resolved")
    assert "'nowhere.x' not found" in message
    assert r"write \${X}" in message


def test_an_interpolation_in_a_detached_config_gets_the_prefix():
    detached = OmegaConf.create({"n_workers": "${oc.env:ESPNET3_NOT_SET}"})
    assert problem(detached, prefix="parallel").startswith("parallel.n_workers cannot be resolved")


def test_defaults_that_look_like_a_schema_are_left_alone():
    class Odd(FrozenConfig):
        type: dict[str, Any] = Field(default={"type": "int"})

    assert validate(Odd, None).type == {"type": "int"}
    assert validate(Odd, {"type": {"type": "str"}}).type == {"type": "str"}


def test_a_field_of_any_name_is_strict():
    class Names(FrozenConfig):
        default: int = 1
        metadata: int = 1
        type: int = 1

    for name in ("default", "metadata", "type"):
        assert problem({name: "4"}, Names).endswith(f"Write it without quotes: {name}: 4")


class Outputs(FrozenConfig):
    keys: Names | None = None
    inputs: Names | dict[str, str] = []


def test_one_text_may_stand_for_a_list_of_one():
    config = validate(Outputs, {"keys": "hyp", "inputs": "ref"})
    assert (config.keys, config.inputs) == (["hyp"], ["ref"])
    assert validate(Outputs, {"keys": ["a", "b"], "inputs": {"a": "b"}}).keys == ["a", "b"]
    with pytest.raises(ConfigError, match="keys is 3"):
        validate(Outputs, {"keys": 3})


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("espnet3.systems.base.statistics.StatisticsConfig", "model_keys"),
        ("espnet3.systems.base.statistics.StatisticsConfig", "accept_changes"),
        ("espnet3.trainer.config.TrainingConfig", "accept_changes"),
        ("espnet3.systems.asr.publication.PackConfig", "tags"),
        ("espnet3.systems.asr.publication.PackConfig", "datasets"),
        ("espnet3.systems.asr.tokenizer_training.TokenizerConfig", "clean_types"),
    ],
)
def test_keys_with_names_take_one_without_a_list(model, name):
    field = locate(model).model_fields[name]
    adapter = TypeAdapter(Annotated[field.annotation, "of one", *field.metadata])
    assert adapter.validate_python("a") == ["a"]
