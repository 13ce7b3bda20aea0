"""With `on_error: skip`, a misspelt `input_key` ended as a success without a single file.

So did its relatives: fields that only some shards have gave advice about newlines, and a dataset
of lists an error inside our own error message.
"""

import pytest

from espnet3.errors import ConfigError, IncompleteRunError
from espnet3.parallel import use_parallel
from espnet3.systems.base.inference_runner import InferenceRunner
from tests.helpers.providers import Provider


def echo(speech):
    return speech


def only_later(speech):
    return {"hyp": speech, "late": speech} if int(speech) >= 19 else {"hyp": speech}


def run(samples, model, folder, **settings):
    with use_parallel({"env": "local", "n_workers": 1}):
        return InferenceRunner(
            Provider(dataset=samples, model=model), output_dir=folder, **settings
        )(range(len(samples)))


SAMPLES = [{"utt_id": f"utt{i}", "speech": str(i)} for i in range(40)]


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_run_in_which_all_items_fail_is_an_error_with_the_reason(tmp_path, batch_size):
    settings = {"on_error": "skip", "input_key": "speach", "batch_size": batch_size}
    for _ in range(2):  # nor is it complete when asked again
        with pytest.raises(IncompleteRunError, match=r"failed.*input_key is 'speach'.*'speech'"):
            run(SAMPLES, echo, tmp_path / "out", **settings)


def test_one_item_with_a_result_is_enough(tmp_path):
    samples = [*SAMPLES[:1], *({"utt_id": f"bad{i}"} for i in range(39))]
    files = run(samples, echo, tmp_path / "out", on_error="skip")
    assert files["hyp"].read_text() == "utt0 0\n"


def test_a_field_that_only_some_shards_have_is_named(tmp_path):
    with pytest.raises(IncompleteRunError, match=r"'late'.*set output_keys: \[hyp\]"):
        run(SAMPLES, only_later, tmp_path / "out")


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_sample_that_is_no_dict_says_what_to_return(tmp_path, batch_size):
    with pytest.raises(ConfigError, match=r"of type list\. Return a dict"):
        run([[1, 2]] * 3, echo, tmp_path / "out", batch_size=batch_size)
