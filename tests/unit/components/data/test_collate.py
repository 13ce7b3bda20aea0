import numpy as np
import pytest
import torch

from espnet3.components.data.collate import PadCollate
from espnet3.components.data.errors import DataError
from espnet3.errors import ConfigError


def sample(name, n, **more):
    return {"utt_id": name, "speech": np.arange(1, n + 1, dtype=np.float32), **more}


def test_arrays_are_padded_to_the_longest_and_their_lengths_told():
    batch = PadCollate()([sample("a", 2), sample("b", 3)])
    assert batch["utt_id"] == ["a", "b"]
    assert batch["speech"].tolist() == [[1, 2, 0], [1, 2, 3]]
    assert batch["speech"].dtype == torch.float32
    assert batch["speech_lengths"].tolist() == [2, 3]
    assert batch["speech_lengths"].dtype == torch.int64
    assert list(batch) == ["utt_id", "speech", "speech_lengths"]


def test_further_axes_stay():
    features = [torch.ones(2, 80), torch.ones(5, 80)]
    batch = PadCollate()([{"feats": x} for x in features])
    assert batch["feats"].shape == (2, 5, 80)
    assert batch["feats"].sum() == 7 * 80


def test_numbers_are_stacked_and_texts_and_the_rate_kept():
    samples = [
        {"speaker": 3, "gain": 0.5, "level": np.float32(1), "ok": True, "text": "x",
         "sample_rate": 16000, "words": ["x", "y"], "other": None},
        {"speaker": 4, "gain": 1, "level": np.float32(2), "ok": False, "text": "y",
         "sample_rate": 16000, "words": [], "other": None},
    ]  # fmt: skip
    batch = PadCollate()(samples)
    assert batch["speaker"].tolist() == [3, 4]
    assert batch["speaker"].dtype == torch.int64
    assert batch["gain"].tolist() == [0.5, 1.0]
    assert batch["level"].dtype == torch.float32
    assert batch["ok"].dtype == torch.bool
    assert batch["text"] == ["x", "y"]
    assert batch["sample_rate"] == [16000, 16000]
    assert batch["words"] == [["x", "y"], []]
    assert batch["other"] == [None, None]
    assert not any(key.endswith("_lengths") for key in batch)


def test_lists_of_numbers_are_arrays_also_when_empty():
    batch = PadCollate()([{"text": []}, {"text": [4, 5]}, {"text": (6,)}])
    assert batch["text"].tolist() == [[-1, -1], [4, 5], [6, -1]]
    assert batch["text_lengths"].tolist() == [0, 2, 1]
    assert PadCollate()([{"x": []}, {"x": [0.5]}])["x"].tolist() == [[-1.0], [0.5]]


def test_what_to_pad_with_can_be_chosen():
    samples = [
        {"labels": [1], "tokens": [1], "x": [1.5], "mask": np.array([True])},
        {"labels": [1, 2], "tokens": [1, 2], "x": [1.5, 2], "mask": np.array([True, True])},
    ]
    batch = PadCollate({"labels": -100}, float_pad=9.0, int_pad=0)(samples)
    assert batch["labels"].tolist()[0] == [1, -100]
    assert batch["tokens"].tolist()[0] == [1, 0]
    assert batch["x"].tolist()[0] == [1.5, 9]
    assert batch["mask"].tolist()[0] == [True, False]


def test_lengths_masks_and_fields_to_drop_can_be_chosen():
    samples = [sample("a", 2, text=[1]), sample("b", 3, text=[1, 2])]
    assert "speech_lengths" not in PadCollate(lengths=False)(samples)
    some = PadCollate(lengths=["text"], drop=["utt_id"])(samples)
    assert list(some) == ["speech", "text", "text_lengths"]
    masked = PadCollate(masks={"speech": "attention_mask"})(samples)
    assert masked["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(4, dtype=np.float32)[::-1],
        np.frombuffer(np.arange(4, dtype=np.int16).tobytes(), dtype=np.int16),
        np.arange(4, dtype=np.uint16),
        np.arange(8.0).reshape(2, 4)[1],
    ],
    ids=["backwards", "read-only", "unsigned", "view"],
)
def test_any_array_of_numbers_will_do(array, recwarn):
    batch = PadCollate()([{"x": array}, {"x": array[:2]}])
    assert batch["x"][0].tolist() == array.tolist()
    assert not recwarn


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([sample("a", 1), sample("b", 1, text="x")], r"a and sample b .*has text.*drop: \[text\]"),
        ([sample("a", 1), {"utt_id": "b", "speech": np.ones((4, 2), np.float32)}],
         r"\[1\] in sample a but \[4, 2\] in sample b; only the first axis.*channel: 0"),
        ([("a", {})], "of type tuple. Return a dict"),
    ],
)  # fmt: skip
def test_samples_that_do_not_go_together_are_named(samples, message):
    with pytest.raises(DataError, match=message):
        PadCollate()(samples)


def test_a_name_instead_of_a_list_is_refused():
    with pytest.raises(ConfigError, match=r"drop: \[text\]"):
        PadCollate(drop="text")
