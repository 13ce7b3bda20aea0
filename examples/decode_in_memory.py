"""Results in memory: a provider builds dataset and model in each worker, the runner decodes."""

from omegaconf import OmegaConf

from espnet3.parallel import BaseRunner, set_parallel
from espnet3.systems.base.inference_provider import InferenceProvider

config = OmegaConf.create({"dataset": {"n": 12}, "parallel": {"env": "local", "n_workers": 2}})


class DecodeProvider(InferenceProvider):
    """Stands for one that loads a corpus and a checkpoint."""

    @staticmethod
    def build_dataset(config):
        return [{"utt_id": f"utt{i}", "speech": [i, i + 1]} for i in range(config.dataset.n)]

    @staticmethod
    def build_model(config):
        return lambda speech, beam_size: f"{sum(speech)} with beam {beam_size}"


class DecodeRunner(BaseRunner):
    """One static function over many utterances."""

    @staticmethod
    def forward(idx, *, dataset, model, beam_size=5):
        sample = dataset[idx]
        return {"utt_id": sample["utt_id"], "hyp": model(sample["speech"], beam_size)}


set_parallel(config.parallel)
results = DecodeRunner(DecodeProvider(config, params={"beam_size": 8}))(range(config.dataset.n))
print(len(results), "results; the last one:", results[-1])
