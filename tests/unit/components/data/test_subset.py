import numpy as np
import pytest
import soundfile

from espnet3.components.data.data_organizer import DataOrganizer
from espnet3.components.data.dataset import fields_of, fingerprint_of, has_fields
from espnet3.errors import EspnetError

SPEAKERS = {"a1": "07", "a2": "07", "b1": "anna", "c1": "ben", "c2": "ben"}


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "it's train"
    folder.mkdir()
    for n, id in enumerate(SPEAKERS, 1):
        soundfile.write(folder / f"{id}.wav", np.zeros(1600 * n), 16000)
    for name, value in {
        "wav.scp": f"{folder}/{{id}}.wav",
        "text": "hello",
        "utt2spk": "{speaker}",
    }.items():
        lines = (f"{i} {value.format(id=i, speaker=s)}\n" for i, s in SPEAKERS.items())
        (folder / name).write_text("".join(lines))
    return folder


def train(corpus, recipe_dir=None, **keys):
    entry = {"data_src": "kaldi", "data_src_args": {"path": str(corpus)}, **keys}
    return DataOrganizer(recipe_dir, train=[entry]).train


def ids(dataset):
    return [fields_of(dataset, i)["utt_id"] for i in range(len(dataset))]


def test_only_and_leave_out_divide_a_corpus_by_a_field(corpus):
    held_out = {"speaker": ["07", "anna"]}
    kept, left = train(corpus, only=held_out), train(corpus, leave_out=held_out)
    assert ids(kept) == ["a1", "a2", "b1"]
    assert ids(left) == ["c1", "c2"]
    assert left.durations().tolist() == pytest.approx([0.4, 0.5])
    assert left[1]["speech"].shape == (8000,)
    assert [file.rsplit("/", 1)[1] for file in left.datasets[0].audio_files(9)] == [
        "c1.wav",
        "c2.wav",
    ]
    assert has_fields(left)
    assert len({fingerprint_of(one) for one in (kept, left, train(corpus))}) == 3


def test_values_come_from_a_file_of_the_recipe(corpus, tmp_path):
    (tmp_path / "held_out.txt").write_text("a2\nc1\n")
    left = train(corpus, tmp_path, leave_out={"utt_id": "held_out.txt"})
    assert ids(left) == ["a1", "b1", "c2"]


def test_a_number_of_yaml_is_taken_for_the_text_that_it_is(corpus):
    corpus.joinpath("utt2spk").write_text("".join(f"{id} {n}\n" for n, id in enumerate(SPEAKERS)))
    assert ids(train(corpus, only={"speaker": [0, 3]})) == ["a1", "c1"]


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"only": {"speaker": ["7"]}}, "quotes in YAML: ['07']"),
        ({"only": {"speakr": ["07"]}}, "Did you mean 'speaker'?"),
        ({"leave_out": {"speaker": "gone.txt"}}, "no such file"),
        ({"leave_out": {"text": ["hello"]}}, "only and leave_out keep no item"),
    ],
)
def test_what_selects_nothing_is_told_with_the_way_on(corpus, keys, told):
    with pytest.raises(EspnetError) as caught:
        train(corpus, **keys)
    assert str(caught.value).startswith("dataset.train.0")
    assert told in str(caught.value)
