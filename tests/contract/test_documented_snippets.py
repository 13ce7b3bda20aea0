"""The Python of the documentation runs as printed; only the loaders are supplied here."""

import ast
import json
from textwrap import indent

import pytest

from tests.helpers.exhaustive import few
from tests.helpers.snippets import read_snippet

LOCAL_1 = {"env": "local", "n_workers": 1}
LOCAL_2 = {"env": "local", "n_workers": 2}

LOADERS = """
from types import SimpleNamespace
from omegaconf import OmegaConf

cfg = config = OmegaConf.create({
    "dataset": {"n": 20},
    "model": {"scale": 3, "device": "cpu"},
    "parallel": PARALLEL, "parallel_gpu": PARALLEL,
})

def load_eval_split(dataset_cfg):
    return [{"utt_id": f"utt{i}", "speech": [float(i)] * 4} for i in range(dataset_cfg.n)]

class Model:
    def __init__(self, scale):
        self.scale = scale
        self.device = None
    def to(self, device):
        self.device = device
        return self
    def decode(self, sample, beam_size):
        return f"{sample['utt_id']} beam {beam_size} on {self.device}"
    def __call__(self, speech):
        return "hello " + " ".join(str(int(x * self.scale)) for x in speech)

def build_model(model_cfg):
    return Model(model_cfg.scale)

eval_set = load_eval_split(cfg.dataset)
"""


def loaders(parallel: dict) -> str:
    return LOADERS.replace("PARALLEL", repr(parallel))


@pytest.mark.parametrize("parallel", [LOCAL_1, LOCAL_2], ids=["in process", "two processes"])
def test_decode_runner_gives_the_results_in_order_with_the_params(run_script, parallel):
    out = run_script(loaders(parallel), "decode_runner", "import json; print(json.dumps(results))")
    results = json.loads(out)
    assert [r["utt_id"] for r in results] == [f"utt{i}" for i in range(20)]
    assert results[7]["hyp"] == "utt7 beam 8 on cpu"


def test_decode_runner_runs_on_a_scheduler_that_the_user_has(run_script, dask_address):
    parallel = {"env": "dask", "options": {"address": dask_address}}
    out = run_script(loaders(parallel), "decode_runner", "import json; print(json.dumps(results))")
    assert [r["hyp"] for r in json.loads(out)] == [f"utt{i} beam 8 on cpu" for i in range(20)]


def test_worker_plugin_and_parallel_map(run_script):
    own = """
    class Recognizer:
        def to(self, device): assert device == "cuda"
        def __call__(self, array): return [[f"text of {len(array)} samples"]]
    def load_model(): return Recognizer()
    def load_dataset(): return {"audio": {"array": [0.0] * 5}, "text": "text of 5 samples"}
    def compute_wer(refs, hyps): return sum(r != h for r, h in zip(refs, hyps)) / len(refs)
    test_data = range(30)
    """
    out = run_script(loaders(LOCAL_2), own, "worker_plugin", "print(len(results), len(hyps))")
    assert out.split() == ["0.0", "30", "30"]


MY_PROVIDER = """
from espnet3.parallel import BaseRunner, set_parallel
from espnet3.systems.base.inference_provider import InferenceProvider

class MyProvider(InferenceProvider):
    @staticmethod
    def build_dataset(cfg): return load_eval_split(cfg.dataset)
    @staticmethod
    def build_model(cfg): return build_model(cfg.model)
"""


@pytest.mark.parametrize("parallel", [LOCAL_1, LOCAL_2], ids=["in process", "two processes"])
def test_provider_and_runner_of_three_lines(run_script, parallel):
    runner = """
    class MyRunner(BaseRunner):
        @staticmethod
        def forward(idx, dataset, model, **env):
            # In one piece: two workers write to one pipe.
            print(model(dataset[idx]["speech"]) + "\\n", end="", flush=True)
    dataset = load_eval_split(cfg.dataset)
    set_parallel(cfg.parallel)
    """
    out = run_script(loaders(parallel), MY_PROVIDER, runner, "provider_runner")
    assert sorted(out.splitlines())[0] == "hello 0 0 0 0"
    assert len(out.splitlines()) == 20


def test_a_lambda_of_the_script_itself_runs_on_workers(run_script):
    call = """
    set_parallel(cfg.parallel)
    print(parallel_map(lambda i: load_eval_split(cfg.dataset)[i], [3]))
    """
    out = run_script(loaders(LOCAL_2), "from espnet3.parallel import *", call)
    assert "utt3" in out


@pytest.mark.parametrize("batch_size", few([None, 1, 7, 100], 2))
def test_batch_forward_gets_a_list_or_one_index(run_script, batch_size):
    call = f"""
    def build_model(model_cfg):
        return lambda samples: [f"{{s['utt_id']}} of {{len(samples)}}" for s in samples]
    set_parallel(cfg.parallel)
    print(Batched(MyProvider(cfg), batch_size={batch_size})(range(20)))
    """
    runner = "class Batched(BaseRunner):\n" + indent(read_snippet("batch_forward"), "    ")
    results = ast.literal_eval(run_script(loaders(LOCAL_2), MY_PROVIDER, runner, call))
    if batch_size is None:
        assert results == [[f"utt{i} of 1"] for i in range(20)]
    else:
        assert [r.split()[0] for r in results] == [f"utt{i}" for i in range(20)]
        assert results[0].endswith(f"of {min(batch_size, 20)}")


@pytest.mark.parametrize("parallel", [LOCAL_1, LOCAL_2], ids=["in process", "two processes"])
def test_text_runner_writes_one_text_in_dataset_order(run_script, tmp_path, parallel):
    call = """
    set_parallel(cfg.parallel)
    runner = MyTextRunner(MyProvider(cfg), output_dir="out put")
    assert runner(range(20)) == {}
    assert runner(range(20)) == {}
    """
    run_script(loaders(parallel), MY_PROVIDER, "text_runner", call)
    lines = (tmp_path / "out put" / "text").read_text().splitlines()
    assert lines == [f"utt{i} hello {' '.join([str(3 * i)] * 4)}" for i in range(20)]


def test_custom_providers(run_script):
    own = """
    import sys, types
    from omegaconf import OmegaConf

    recipe = types.ModuleType("recipe"); sys.modules["recipe"] = recipe
    class Organizer:
        def __init__(self, n): self.test = {"test_clean": [{"duration": i / 10} for i in range(n)]}
    class LmModel:
        def __init__(self, device): self.calls = [device]
        def load_language_model(self, path): self.calls.append(path)
        def eval(self): self.calls.append("eval")
    recipe.Organizer, recipe.LmModel = Organizer, LmModel
    def FilteredDataset(dataset, min_duration):
        return [sample for sample in dataset if sample["duration"] >= min_duration]
    config = OmegaConf.create({
        "dataset": {"_target_": "recipe.Organizer", "n": 10}, "test_set": "test_clean",
        "model": {"_target_": "recipe.LmModel"}, "lm_path": "lm.pt", "device": "cpu",
    })
    """
    check = "print(len(MyInferenceProvider(config).build_env_local()['dataset']))"
    check_model = "print(MyInferenceProvider(config).build_env_local()['model'].calls)"
    out = run_script(own, "custom_dataset_provider", check, "custom_model_provider", check_model)
    assert out.splitlines() == ["5", "['cpu', 'lm.pt', 'eval']"]
