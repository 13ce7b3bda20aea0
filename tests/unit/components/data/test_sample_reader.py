"""What the terminal and the log get to see when a sample or a batch cannot be made."""

import pickle
import re
import traceback

import pytest

from espnet3.components.data.errors import DataError
from espnet3.components.data.loader import SampleFailure, build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.errors import ConfigError


class Broken:
    def __len__(self):
        return 4

    def __getitem__(self, index):
        if index == 2:
            raise KeyError("transcript")
        return {"utt_id": str(index)}


def first_error(dataset, collate_fn=list, **settings) -> DataError:
    config = LoaderConfig(batch_size=1, **settings)
    loader = build_loader(dataset, config, collate_fn=collate_fn, seed=0, split="valid")
    with pytest.raises(DataError) as caught:
        list(loader)
    return caught.value


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_error_is_one_line_with_the_line_of_code_and_its_traceback_is_the_cause(n_workers):
    error = first_error(Broken(), num_workers=n_workers)
    assert str(error).startswith("item 2 of the dataset: KeyError: 'transcript' (")
    assert re.search(r"test_sample_reader\.py:\d+, in __getitem__\)", str(error))
    assert str(error).endswith("set dataloader.valid.on_error: skip")
    assert "\n" not in str(error)
    logged = "".join(traceback.format_exception(error))
    assert 'raise KeyError("transcript")' in logged


@pytest.mark.parametrize("n_workers", [0, 1])
def test_samples_that_make_no_batch_are_not_a_matter_of_skipping(n_workers):
    def collate(samples):
        raise ValueError("no two are alike")

    error = first_error(["a", "b"], collate, num_workers=n_workers)
    assert str(error).startswith("The batch of item 0 of the dataset: ValueError: no two are alike")
    assert "skip" not in str(error)


def test_our_own_errors_keep_their_kind_and_words():
    failure = SampleFailure.of(ConfigError("a is 1. Write: a: 2"), "item 3")
    assert failure.trace == ""
    error = failure.as_error("Skip it.")
    assert type(error) is ConfigError
    assert str(error) == "item 3: a is 1. Write: a: 2 Skip it."


def test_a_failure_crosses_processes():
    try:
        raise OSError("cut off")
    except OSError as error:
        failure = SampleFailure.of(error, "item 3")
    sent = pickle.loads(
        pickle.dumps(SampleFailure(failure.place, failure.message, trace=failure.trace))
    )
    assert sent.summary == failure.summary
    assert 'raise OSError("cut off")' in str(sent.as_error("").__cause__)
