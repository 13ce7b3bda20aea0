import sys

import numpy as np
import pytest

from espnet3.components.data.errors import AudioError
from espnet3.components.data.sources.huggingface import Dataset
from espnet3.errors import ConfigError, MissingExtraError, RecordError

pytest.importorskip("datasets")


@pytest.fixture
def save(tmp_path, write_wav):
    """Return a function that saves a table with the audio of two files, of 1 and 0.5 s."""
    import datasets

    datasets.disable_progress_bars()
    paths = [str(tmp_path / f"it's {name}.wav") for name in "ba"]

    def table(**columns):
        values = {"audio": paths, **columns}
        kind = datasets.Audio(sampling_rate=16000)
        return datasets.Dataset.from_dict(values).cast_column("audio", kind)

    def save(split=None, **columns):
        data = table(**columns)
        folder = tmp_path / "saved data"
        (datasets.DatasetDict({split: data, "train": data}) if split else data).save_to_disk(folder)
        return folder

    save.table = table
    for path, seconds in zip(paths, (1.0, 0.5), strict=True):
        save.written = write_wav(tmp_path / path, seconds)
    yield save
    datasets.enable_progress_bars()


def problem(error, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        Dataset(*args, **kwargs)
    return str(caught.value)


def test_audio_is_read_from_the_saved_bytes(save, tmp_path):
    folder = save(id=["x", "y"], text=["one", "two"], lang=["en", "de"])
    for file in tmp_path.glob("*.wav"):
        file.unlink()
    dataset = Dataset("saved data", recipe_dir=tmp_path, sample_rate=16000)
    assert len(dataset) == 2
    sample = dataset[-1]
    assert np.array_equal(sample.pop("speech"), save.written)
    assert sample == {"utt_id": "y", "text": "two", "lang": "de", "sample_rate": 16000}
    assert Dataset(folder).durations() == [1.0, 0.5]


def test_durations_come_from_their_column(save):
    dataset = Dataset(save(duration=[3.5, None]))
    assert dataset.durations() == [3.5, 0.5]


def test_without_ids_the_row_is_the_id(save):
    assert Dataset(save())[1]["utt_id"] == "1"


def test_columns_may_have_other_names(save):
    folder = save(uid=[7, 8], words=["one", "two"], id=["same", "same"], offset=[1, 2])
    dataset = Dataset(folder, columns={"utt_id": "uid", "text": "words"})
    sample = dataset[0]
    assert (sample["utt_id"], sample["text"], sample["id"]) == ("7", "one", "same")
    assert sample["offset"] == 1
    assert "words" not in sample
    message = problem(ConfigError, folder, columns={"text": "word"})
    assert "columns.text is 'word'" in message
    assert "Did you mean 'words'?" in message


def test_ids_that_repeat_are_named_by_row(save):
    message = problem(RecordError, save(id=["same", "same"]))
    assert "row 1: The id 'same' is that of" in message
    assert "columns: {utt_id: COLUMN}" in message


def test_a_split_is_chosen_by_name(save):
    folder = save(split="test")
    assert len(Dataset(folder, split="test")) == 2
    assert problem(ConfigError, folder).endswith(
        "split is not set, but " + f"{folder} has the splits test, train. Write: split: test"
    )
    assert "Did you mean 'test'?" in problem(ConfigError, folder, split="tst")


def test_a_split_of_a_single_dataset_is_refused(save):
    assert problem(ConfigError, save(), split="test").endswith("Remove split.")


def test_a_column_of_paths_is_read_too(save, tmp_path):
    import datasets

    table = save.table().cast_column("audio", datasets.Audio(decode=False))
    paths = [row["audio"]["path"] for row in table]
    folder = tmp_path / "paths"
    datasets.Dataset.from_dict({"path": [paths[1], None], "text": [1, 2]}).save_to_disk(folder)
    dataset = Dataset(folder)
    assert dataset[0]["speech"].shape == (8000,)
    with pytest.raises(AudioError, match="row 1: There is no audio"):
        dataset[1]


def test_a_column_that_is_no_audio_is_refused_with_the_one_that_is(save):
    message = problem(ConfigError, save(n=[1, 2]), columns={"speech": "n"})
    assert message.startswith("columns.speech is 'n'")
    assert message.endswith("Write: columns: {speech: audio}")


def test_the_fingerprint_is_that_of_datasets(save, tmp_path):
    prints = [Dataset(save(text=["one", "two"])).fingerprint() for _ in range(2)]
    prints += [Dataset(save(text=["one", "three"])).fingerprint()]
    assert prints[0] == prints[1] != prints[2]


def test_a_folder_that_was_not_saved_says_how_to_save_one(tmp_path):
    message = problem(ConfigError, tmp_path)
    assert "is no folder that datasets saved" in message
    assert ".save_to_disk(" in message


def test_without_the_extra_the_line_that_installs_it_is_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    message = problem(MissingExtraError, tmp_path)
    assert message.endswith("pip install -c constraints.txt -e '.[huggingface]'")
