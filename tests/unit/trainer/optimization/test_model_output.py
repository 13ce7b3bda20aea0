from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from espnet3.errors import TrainingError
from espnet3.trainer.optimization.model_calls import batch_size, parse_output

LOSS = torch.tensor(2.0, requires_grad=True)


@dataclass
class Plain:
    loss: torch.Tensor


@pytest.mark.parametrize(
    ("output", "stats", "weight"),
    [
        ((LOSS, {"acc": 0.5}, torch.tensor(3)), {"acc": 0.5, "loss": 2.0}, 3),
        ((LOSS, {"acc": torch.tensor([0.5])}, None), {"acc": 0.5, "loss": 2.0}, 7),
        ((LOSS, None, 2), {"loss": 2.0}, 2),
        ([LOSS, {"cer": None, "n": np.int64(4)}, 2], {"n": 4.0, "loss": 2.0}, 2),
        ((LOSS, {"loss": 9.0}, 2), {"loss": 9.0}, 2),
        ({"loss": LOSS}, {"loss": 2.0}, 7),
        ({"loss": LOSS, "stats": {"acc": 1}, "weight": 5}, {"acc": 1.0, "loss": 2.0}, 5),
        ({"loss": LOSS, "acc": 0.5, "logits": torch.zeros(2, 3)}, {"acc": 0.5, "loss": 2.0}, 7),
        ({"loss": LOSS, "note": "text", "cache": object()}, {"loss": 2.0}, 7),
        (Plain(LOSS), {"loss": 2.0}, 7),
        (SimpleNamespace(loss=LOSS, stats={"a": 1.0}, weight=4), {"a": 1.0, "loss": 2.0}, 4),
        ((LOSS.reshape(1), {}, 1), {"loss": 2.0}, 1),
        (LOSS, {"loss": 2.0}, 7),
        ((LOSS, {"acc": 0.5}), {"acc": 0.5, "loss": 2.0}, 7),
    ],
)
def test_the_forms(output, stats, weight):
    parsed = parse_output(output, "Model", default_weight=7)
    assert {name: float(value) for name, value in parsed.stats.items()} == stats
    assert float(parsed.weight) == weight
    assert parsed.loss.shape == ()
    assert parsed.loss.requires_grad
    assert not any(getattr(value, "requires_grad", False) for value in parsed.stats.values())


@pytest.mark.parametrize(
    "output",
    [
        torch.zeros(4),
        (LOSS, LOSS),
        None,
        3.0,
        {"losses": LOSS},
        "loss",
        (LOSS, [1], 1),
        {"loss": 2.0},
    ],
)
def test_anything_else_is_an_error_that_shows_the_forms(output):
    with pytest.raises(TrainingError, match="return loss, stats, weight") as caught:
        parse_output(output, "Recogniser")
    assert "Recogniser.forward returned" in str(caught.value)


@pytest.mark.parametrize(
    ("output", "fix"),
    [
        ((torch.zeros(4), {}, 1), r"loss = loss\.mean\(\)"),
        ((LOSS, {"acc": torch.zeros(4)}, 1), r"stats\['acc'\].*\.mean\(\)"),
        ((LOSS, {"text": "a"}, 1), r"stats\['text'\]"),
        ((LOSS, {}, torch.ones(4)), "the weight"),
        ({"loss": LOSS, "stats": [1]}, "Return one of"),
        ({"loss": None}, "'labels'"),
    ],
)
def test_what_is_not_one_number(output, fix):
    with pytest.raises(TrainingError, match=fix):
        parse_output(output, "Model")


def test_the_size_of_a_batch_is_the_length_of_its_first_tensor():
    assert batch_size({"utt_id": ["a"], "n": torch.tensor(3), "x": torch.zeros(5, 2)}) == 5
    assert batch_size({"utt_id": ["a"]}) == 1
