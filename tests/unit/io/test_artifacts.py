import json
import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet3.errors import ConfigError, RecordError
from espnet3.io.artifacts import read_artifact, write_artifact

RATE = 16000


def write_wav(value, folder: Path, **options) -> Path:
    return write_artifact(value, folder / "utt.0", "wav", **{"sample_rate": RATE, **options})


@pytest.mark.parametrize(
    ("type", "suffix", "value"),
    [
        ("npy", "npy", [1, 2]),
        ("json", "json", {"a": 1}),
        ("text", "txt", "x"),
        ("pickle", "pkl", {1}),
    ],
)
def test_suffix_is_added_also_after_a_dot_in_the_name(folder, type, suffix, value):
    assert write_artifact(value, folder / "utt.0", type) == folder / f"utt.0.{suffix}"
    assert write_artifact(value, str(folder / "utt.1"), type) == folder / f"utt.1.{suffix}"
    assert len(list(folder.iterdir())) == 2


def test_int16_audio_is_written_exactly(folder):
    audio = np.array([0, 1, -1, 32767, -32768], dtype=np.int16)
    path = write_wav(audio, folder)
    assert soundfile.info(str(path)).subtype == "PCM_16"
    np.testing.assert_array_equal(soundfile.read(path, dtype="int16")[0], audio)
    samples, rate = read_artifact(path)
    assert (samples.dtype, rate) == (np.float32, RATE)
    np.testing.assert_array_equal(samples, audio / np.float32(32768))


def test_int32_audio_keeps_its_32_bits(folder):
    audio = np.array([0, 2**31 - 1, -(2**31), 12345], dtype=np.int32)
    path = write_wav(audio, folder)
    np.testing.assert_array_equal(read_artifact(path)[0], audio / 2**31)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(400,), (200, 2)])
def test_float_audio_within_full_scale_becomes_16_bits(folder, dtype, shape, caplog):
    audio = np.linspace(-1, 1, 400, dtype=dtype).reshape(shape)
    path = write_wav(audio, folder)
    assert soundfile.info(str(path)).subtype == "PCM_16"
    samples, _ = read_artifact(path)
    assert samples.shape == shape
    np.testing.assert_allclose(samples, audio, atol=2**-14)
    assert not caplog.records


def test_lists_and_empty_audio_are_written(folder):
    assert read_artifact(write_wav([0.0, 0.5, -0.5], folder))[0].tolist() == [0.0, 0.5, -0.5]
    assert read_artifact(write_wav(np.zeros(0, np.float32), folder))[0].shape == (0,)


def test_audio_beyond_full_scale_is_kept_as_floats_with_a_warning(folder, caplog):
    with caplog.at_level(logging.WARNING):
        path = write_wav(np.array([0.5, -1.75], np.float32), folder)
    assert soundfile.info(str(path)).subtype == "FLOAT"
    np.testing.assert_array_equal(read_artifact(path)[0], np.array([0.5, -1.75], np.float32))
    assert "1.75" in caplog.text
    assert "audio / abs(audio).max()" in caplog.text


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_audio_that_is_not_finite_is_refused_with_the_place(folder, bad):
    audio = np.zeros((100, 2))
    audio[42, 1] = bad
    with pytest.raises(RecordError) as error:
        write_wav(audio, folder)
    assert "1 of 200 samples" in str(error.value)
    assert "at [42, 1]" in str(error.value)
    assert "numpy.nan_to_num" in str(error.value)
    assert not list(folder.iterdir())


@pytest.mark.parametrize("rate", [None, 0, -1, 16000.5, "16000", True])
def test_wav_without_a_good_sample_rate_shows_the_line_to_add(folder, rate):
    with pytest.raises(ConfigError) as error:
        write_wav([0.0], folder, sample_rate=rate)
    assert "`sample_rate: 16000`" in str(error.value)
    assert repr(rate) in str(error.value)


def test_numpy_sample_rate_is_taken(folder):
    assert read_artifact(write_wav([0.0], folder, sample_rate=np.int64(8000)))[1] == 8000


@pytest.mark.parametrize("value", [[0, 1, 2], np.zeros(3, np.uint8), np.zeros(3, bool), ["a"]])
def test_audio_of_unknown_full_scale_is_refused_with_the_types_to_use(folder, value):
    with pytest.raises(RecordError, match='dtype="int16"'):
        write_wav(value, folder)


@pytest.mark.parametrize("shape", [(), (1, 16000), (3, 0), (2, 3, 4)])
def test_audio_of_the_wrong_shape_is_refused_with_the_transposition(folder, shape):
    with pytest.raises(RecordError, match=r"audio\.T") as error:
        write_wav(np.zeros(shape, np.float32), folder)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.float32(3), np.array(["é", "b"])])
def test_npy_round_trip(folder, array):
    loaded = read_artifact(write_artifact(array, folder / "a", "npy"))
    np.testing.assert_array_equal(loaded, array)
    assert loaded.dtype == np.asarray(array).dtype


@pytest.mark.parametrize("value", [np.array([{}, None]), {"a": 1}, np.zeros(2, [("x", object)])])
def test_npy_refuses_objects_with_another_type_to_use(folder, value):
    with pytest.raises(RecordError, match="`type: json`"):
        write_artifact(value, folder / "a", "npy")
    assert not list(folder.iterdir())


def test_npy_refuses_ragged_lists_with_another_type_to_use(folder):
    with pytest.raises(RecordError, match="`type: json`"):
        write_artifact([[1, 2], [3]], folder / "a", "npy")


def test_npy_that_holds_a_pickle_is_not_loaded(folder):
    np.save(folder / "a.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(RecordError, match=r"a\.npy cannot be read as npy"):
        read_artifact(folder / "a.npy")


def test_tensors_are_taken_as_arrays(folder):
    torch = pytest.importorskip("torch")
    tensor = torch.linspace(-1, 1, 8, requires_grad=True)
    expected = tensor.detach().numpy()
    np.testing.assert_array_equal(
        read_artifact(write_artifact(tensor, folder / "a", "npy")), expected
    )
    assert read_artifact(write_artifact(tensor, folder / "a", "json")) == expected.tolist()
    np.testing.assert_allclose(read_artifact(write_wav(tensor, folder))[0], expected, atol=2**-14)
    half = tensor.detach().to(torch.bfloat16)
    assert read_artifact(write_artifact(half, folder / "b", "npy")).tolist() == half.tolist()


def test_json_converts_numpy_and_ends_with_a_newline(folder):
    value = {"b": np.int64(1), "a": np.eye(2, dtype=np.float32), "p": Path("x/y"), "t": (1, "é")}
    path = write_artifact(value, folder / "a", "json")
    assert read_artifact(path) == {"b": 1, "a": [[1.0, 0.0], [0.0, 1.0]], "p": "x/y", "t": [1, "é"]}
    assert path.read_text(encoding="utf-8").endswith("}\n")
    assert list(json.loads(path.read_bytes())) == ["b", "a", "p", "t"]


def test_json_refuses_other_objects_with_key_and_fix(folder):
    with pytest.raises(RecordError) as error:
        write_artifact({"model": [object()]}, folder / "a", "json")
    assert "value['model'][0] is <object" in str(error.value)
    assert "convert it" in str(error.value)
    assert str(folder / "a.json") in str(error.value)


@pytest.mark.parametrize("text", ["", "no newline", "two\r\nlines\r\n", "\ufeffé\u2028\x00"])
def test_text_is_written_verbatim(folder, text):
    path = write_artifact(text, folder / "a", "text")
    assert path.read_bytes() == text.encode("utf-8")
    assert read_artifact(path) == text


@pytest.mark.parametrize("value", [3, b"x", ["x"], "\ud800"])
def test_text_refuses_other_values_with_another_type_to_use(folder, value):
    with pytest.raises(RecordError, match="`type: json`"):
        write_artifact(value, folder / "a", "text")


def test_pickle_is_read_only_by_explicit_choice(folder):
    path = write_artifact({1, 2}, folder / "a", "pickle")
    with pytest.raises(RecordError) as error:
        read_artifact(path)
    assert "read_artifact(path, allow_pickle=True)" in str(error.value)
    assert read_artifact(path, allow_pickle=True) == {1, 2}
    assert pickle.loads(path.read_bytes()) == {1, 2}


def test_pickle_refuses_what_cannot_be_pickled_with_the_fix(folder):
    with pytest.raises(RecordError, match="without lambdas"):
        write_artifact(lambda: 0, folder / "a", "pickle")
    assert not list(folder.iterdir())


@pytest.mark.parametrize(("type", "near"), [("wave", "wav"), ("numpy", "npy"), ("txt", "text")])
def test_unknown_type_is_refused_with_the_nearest_and_the_list(folder, type, near):
    with pytest.raises(ConfigError) as error:
        write_artifact([0.0], folder / "a", type)
    assert f"Did you mean {near!r}?" in str(error.value)
    assert "wav, npy, json, text, pickle" in str(error.value)
    assert "`type: npy`" in str(error.value)


def test_unknown_suffix_is_refused_with_the_list(folder):
    with pytest.raises(
        RecordError, match=r"Rename it to one of \.wav, \.npy, \.json, \.txt, \.pkl"
    ):
        read_artifact(folder / "a.mp3")


@pytest.mark.parametrize("suffix", ["wav", "npy", "json"])
@pytest.mark.parametrize("data", [b"", b"damaged"])
def test_damaged_file_is_named_with_what_to_do(folder, suffix, data):
    path = folder / f"a.{suffix}"
    path.write_bytes(data)
    with pytest.raises(RecordError) as error:
        read_artifact(path)
    assert f"a.{suffix} cannot be read as {suffix}" in str(error.value)
    assert "Delete it and write it again" in str(error.value)


def test_missing_file_is_a_plain_file_not_found_error(folder):
    for suffix in ("wav", "npy", "json", "txt"):
        with pytest.raises(FileNotFoundError):
            read_artifact(folder / f"a.{suffix}")


def test_failed_write_keeps_the_old_file(folder):
    path = write_artifact({"a": 1}, folder / "a", "json")
    with pytest.raises(RecordError):
        write_artifact({"a": {1}}, folder / "a", "json")
    assert read_artifact(path) == {"a": 1}
