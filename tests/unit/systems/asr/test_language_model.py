"""A language model: steps against whole texts, and a real training that is loaded again."""

import math
import shutil
from pathlib import Path

import pytest
import torch

from espnet3.components.decoding.joint_beam import JointBeam
from espnet3.components.text.tokenizer import CharacterTokenizer, with_special
from espnet3.errors import ConfigError, RunFolderError
from espnet3.systems.asr.language_model import LanguageModel, load_language_model
from espnet3.systems.base.context import load_configs
from espnet3.systems.base.training import check_train, train
from tests.helpers.decoding_parts import make_model, make_speech

LETTERS = [*"abcdef", "<space>"]
KINDS = ("lstm", "transformer")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    CharacterTokenizer(with_special(LETTERS)).save(folder)
    return folder


def make_lm(tokenizer: Path, kind: str, **settings) -> LanguageModel:
    torch.manual_seed(0)
    return LanguageModel(str(tokenizer), kind, **{"hidden": 16, **settings}).eval()


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_steps_give_what_forward_gives_also_for_selected_texts(tokenizer, kind):
    lm = make_lm(tokenizer, kind)
    end = lm.n_tokens - 1
    texts = torch.tensor([[2, 3, 4, 5], [5, 4, 3, 2]])
    chosen = torch.tensor([1, 0, 1])
    state, total = lm.start(2, "cpu"), torch.zeros(3)
    log_probs, state = lm.step(torch.full((2,), end), state)
    state, log_probs = lm.select(state, chosen), log_probs[chosen]
    for place in range(4):
        tokens = texts[chosen, place]
        total += log_probs.gather(1, tokens[:, None])[:, 0]
        log_probs, state = lm.step(tokens, state)
    total += log_probs[:, end]
    for row, text in enumerate(texts[chosen]):
        loss, _, weight = lm(text[None], torch.tensor([4]))
        assert weight == 5
        assert float(total[row]) == pytest.approx(-5 * float(loss), abs=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_padding_has_no_effect_and_perplexity_is_exact(tokenizer, kind):
    lm = make_lm(tokenizer, kind)
    texts = [[2, 3, 4], [5], [6, 6, 2, 3, 8]]
    alone = [lm(torch.tensor([text]), torch.tensor([len(text)])) for text in texts]
    padded = torch.full((3, 7), -1)
    for row, text in enumerate(texts):
        padded[row, : len(text)] = torch.tensor(text)
    loss, stats, weight = lm(padded, torch.tensor([3, 1, 5]))
    total = sum(float(one) * n for one, _, n in alone)
    assert weight == sum(n for _, _, n in alone) == 12
    assert float(loss) == pytest.approx(total / 12, abs=1e-5)
    assert float(stats["perplexity"]) == pytest.approx(math.exp(total / 12), rel=1e-4)
    assert lm.perplexity(texts, batch_size=2) == pytest.approx(math.exp(total / 12), rel=1e-4)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary(tokenizer):
    lm = make_lm(tokenizer, "lstm")
    torch.nn.init.zeros_(lm.network.output.weight)
    torch.nn.init.zeros_(lm.network.output.bias)
    assert lm.perplexity([[2, 3], [4]]) == pytest.approx(lm.n_tokens)
    with pytest.raises(ConfigError, match="no texts"):
        lm.perplexity([])


def test_an_unknown_kind_is_refused(tokenizer):
    with pytest.raises(ConfigError, match=r"Did you mean 'transformer'\? Write: kind: lstm"):
        LanguageModel(str(tokenizer), "transform")


TRAINING = """\
seed: 0
exp_tag: lm
dataset:
  train: [{data_src: text, data_src_args: {path: "${data_dir}/train.txt"}}]
  valid: [{data_src: text, data_src_args: {path: "${data_dir}/valid.txt"}}]
  preprocessor: {_target_: espnet3.systems.asr.preprocessor.Tokenize, tokenizer: "${data_dir}/tokenizer"}
dataloader: {train: {batch_size: 16}}
model:
  _target_: espnet3.systems.asr.language_model.LanguageModel
  tokenizer: ${data_dir}/tokenizer
  kind: lstm
  hidden: 24
  n_layers: 1
optimizer: {_target_: torch.optim.AdamW, lr: 0.02}
best_model_criterion: [[valid/loss, 2, min]]
trainer: {accelerator: cpu, devices: 1, max_epochs: 3, enable_progress_bar: false, logger: false}
"""  # noqa: E501


@pytest.fixture(scope="module")
def recipe(tmp_path_factory, tokenizer):
    """Train on texts in which a and b alternate; return the recipe's folder."""
    folder = tmp_path_factory.mktemp("it's a corpus")
    data = folder / "data"
    shutil.copytree(tokenizer, data / "tokenizer")
    (data / "train.txt").write_text("".join("ab" * (1 + n % 6) + "\n" for n in range(200)))
    (data / "valid.txt").write_text("".join("ab" * n + "\n" for n in range(1, 7)))
    (folder / "training_lm.yaml").write_text(TRAINING)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        loaded = load_configs({"training": ["training_lm.yaml"]}, recipe_dir=folder).training
        check_train(loaded)
        train(loaded)
    return folder


def test_a_trained_model_is_loaded_from_its_folder_or_weights(recipe):
    exp_dir = recipe / "exp" / "lm"
    lm = load_language_model(exp_dir)
    assert not lm.training
    a, b = LETTERS.index("a") + 2, LETTERS.index("b") + 2
    assert lm.perplexity([[a, b, a, b]]) < 2 < 10 < lm.perplexity([[b, b, a, a]])
    other = load_language_model(str(exp_dir / "last.ckpt"), device="cpu")
    names = lm.state_dict().keys()
    assert names == other.state_dict().keys()
    assert any(not torch.equal(lm.state_dict()[n], other.state_dict()[n]) for n in names)


def test_without_averaged_weights_a_checkpoint_is_loaded(recipe, tmp_path):
    shutil.copytree(recipe, tmp_path / "copy")
    exp_dir = tmp_path / "copy" / "exp" / "lm"
    for file in [*exp_dir.glob("*.ave_*"), *exp_dir.glob("epoch*.ckpt"), exp_dir / "best.json"]:
        file.unlink(missing_ok=True)
    last = load_language_model(exp_dir / "last.ckpt").state_dict()
    found = load_language_model(exp_dir).state_dict()
    assert all(torch.equal(found[name], last[name]) for name in last)
    (exp_dir / "last.ckpt").unlink()
    for file in exp_dir.glob("*.ckpt"):
        file.unlink()
    with pytest.raises(RunFolderError, match="no trained model"):
        load_language_model(exp_dir)


def test_the_search_loads_it_and_follows_it(recipe):
    model = make_model(len(with_special(LETTERS)), sharpness=0.0)  # CTC knows nothing
    weights = recipe / "exp" / "lm" / "valid.loss.ave_2best.safetensors"
    speech = make_speech(3, 8)
    beam = JointBeam(ctc_weight=1.0, lm=str(weights), lm_weight=20.0, length_bonus=20.0)
    for best in beam(model, *speech):
        text = "".join(LETTERS[id - 2] for id in best[0].tokens)
        assert text
        assert text == ("ab" * 8)[: len(text)]


def test_what_is_no_language_model_is_refused(recipe, tmp_path):
    with pytest.raises(ConfigError, match=r"does not exist.*conf/training_lm\.yaml"):
        load_language_model(tmp_path / "nowhere")
    linear = "{_target_: torch.nn.Linear, in_features: 1, out_features: 1}"
    (tmp_path / "config.yaml").write_text(f"model: {linear}")
    torch.save(torch.nn.Linear(1, 1).state_dict(), tmp_path / "last.ckpt")
    with pytest.raises(ConfigError, match="training of a Linear, no language model"):
        load_language_model(tmp_path / "last.ckpt")


def test_weights_of_another_model_are_refused(recipe, tmp_path):
    shutil.copytree(recipe, tmp_path / "copy")
    config = tmp_path / "copy" / "exp" / "lm" / "config.yaml"
    config.write_text(config.read_text().replace("hidden: 24", "hidden: 32"))
    with pytest.raises(RunFolderError, match="are not those of the model"):
        load_language_model(config.parent)
