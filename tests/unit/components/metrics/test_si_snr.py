"""SI-SNR against its formula, and the files that it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from espnet3.components.metrics.si_snr import SISNR, si_snr
from espnet3.errors import ConfigError, RecordError
from espnet3.io.scp import write_scp


def noise(seed, n=2000):
    return np.random.default_rng(seed).normal(size=n)


def by_formula(estimate, reference):
    """Project onto the reference, in the plain words of the definition."""
    s = reference - sum(reference) / len(reference)
    e = estimate - sum(estimate) / len(estimate)
    target = sum(e * s) / sum(s**2) * s
    return 10 * np.log10(sum(target**2) / sum((e - target) ** 2))


def write(path, samples, rate=8000):
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(path, samples, rate, subtype="DOUBLE")
    return path


@pytest.fixture
def data(awkward, monkeypatch):
    """Three utterances: references in data/, estimates in the results, both in lists."""
    monkeypatch.chdir(awkward)
    ids, ref, hyp = ["a", "b", "c"], [], []
    for number, id in enumerate(ids):
        clean = noise(number)
        write(Path("data", f"{id}.wav"), clean)
        write(Path("exp/test/split.0/wav", f"{id}.wav"), clean + 0.3 * noise(10 + number))
        ref.append(f"data/{id}.wav")
        hyp.append(f"split.0/wav/{id}.wav")
    write_scp("data/spk1.scp", dict(zip(ids, ref, strict=True)))
    write_scp("exp/test/hyp.scp", dict(zip(ids, hyp, strict=True)))
    return {"utt_id": ids, "ref": ref, "hyp": hyp}


SOURCES = {"ref": Path("data/spk1.scp"), "hyp": Path("exp/test/hyp.scp")}


def check(data, **options):
    SISNR(**options).check(data, "test", Path("exp"), SOURCES)


def test_the_ratio_is_that_of_the_formula():
    for seed in range(5):
        reference = noise(seed) + 0.5
        estimate = 3 * reference + noise(seed + 50) - 1
        assert si_snr(estimate, reference) == pytest.approx(by_formula(estimate, reference))
        assert si_snr(-7 * estimate + 2, reference) == pytest.approx(si_snr(estimate, reference))


def test_an_exact_copy_and_silence_are_finite():
    assert si_snr(noise(1), noise(1)) > 150
    assert si_snr(np.zeros(2000), noise(1)) < -150


def test_the_mean_over_utterances_with_an_interval_and_files(data):
    numbers = SISNR()(data, "test", Path("exp"))
    ratios = [by_formula(noise(n) + 0.3 * noise(10 + n), noise(n)) for n in range(3)]
    assert numbers["si_snr"] == pytest.approx(np.mean(ratios))
    low, high = numbers["si_snr_interval"]
    # Of three, the ends are draws of the same utterance three times; samples are read as float32.
    assert (low, high) == pytest.approx((min(ratios), max(ratios)))
    lines = [json.loads(line) for line in Path("exp/test/SISNR.jsonl").read_text().splitlines()]
    assert [line["si_snr"] for line in lines] == pytest.approx(ratios)


def test_the_improvement_over_the_mixture(data):
    mixture = []
    for number, id in enumerate(data["utt_id"]):
        mixture.append(
            str(write(Path("data", f"{id}.mix.wav"), noise(number) + noise(90 + number)))
        )
    numbers = SISNR(mix_key="mix").compute({**data, "mix": mixture}, Path("exp/test"))
    before = [by_formula(noise(n) + noise(90 + n), noise(n)) for n in range(3)]
    assert numbers["improvement"] == pytest.approx(numbers["si_snr"] - np.mean(before))


def test_the_best_order_of_separated_sources_counts(awkward):
    first, second = noise(1), noise(2)
    paths = {
        "ref1": write(awkward / "r1.wav", first),
        "ref2": write(awkward / "r2.wav", second),
        "hyp1": write(awkward / "h1.wav", second + 0.1 * noise(3)),
        "hyp2": write(awkward / "h2.wav", first + 0.1 * noise(4)),
    }
    data = {"utt_id": ["u"], **{key: [str(path)] for key, path in paths.items()}}
    metric = SISNR(ref_key=["ref1", "ref2"], hyp_key=["hyp1", "hyp2"])
    expected = [
        by_formula(second + 0.1 * noise(3), second),
        by_formula(first + 0.1 * noise(4), first),
    ]
    assert metric.compute(data)["si_snr"] == pytest.approx(np.mean(expected))
    with pytest.raises(ConfigError, match=r"Write: ref_key: \[ref1, ref2\]"):
        SISNR(ref_key=["ref1", "ref2"])


def test_a_good_set_passes_the_check(data):
    check(data)


def test_a_missing_file_is_told_with_the_line_of_its_list(data):
    Path("data/b.wav").unlink()
    with pytest.raises(
        RecordError, match=r"^data/spk1.scp:2: ref of b is 'data/b.wav', which is no"
    ):
        check(data)


def test_another_rate_is_told_with_both_lines(data):
    write(Path("exp/test/split.0/wav/c.wav"), noise(2), rate=16000)
    with pytest.raises(
        RecordError,
        match=r"^exp/test/hyp.scp:3: hyp of c is sampled at 16000 Hz, but ref \(data/spk1.scp:3\) "
        r"at 8000 Hz.*sample_rate: 8000",
    ):
        check(data)


def test_another_length_is_told_and_may_be_accepted(data):
    write(Path("exp/test/split.0/wav/a.wav"), noise(0, n=1990))
    with pytest.raises(
        RecordError,
        match=r"^exp/test/hyp.scp:1: hyp of a has 1,990 samples, but ref .* 2,000.*cut_to_shortest",
    ):
        check(data)
    check(data, cut_to_shortest=True)
    assert SISNR(cut_to_shortest=True).compute(data, Path("exp/test"))["n_utterances"] == 3


def test_channels_commands_and_silence_are_refused(data):
    write(Path("data/a.wav"), np.stack([noise(0), noise(1)], axis=1))
    with pytest.raises(RecordError, match=r"^data/spk1.scp:1: ref of a has 2 channels.*channel: 0"):
        check(data)
    with pytest.raises(RecordError, match=r"ref of b is a command, 'cat x \|'"):
        check({**data, "ref": [data["ref"][0], "cat x |", data["ref"][2]]}, channel=0)
    write(Path("data/a.wav"), np.zeros(2000))
    with pytest.raises(RecordError, match=r"reference ref of a, .* is silent.*on_missing: skip"):
        SISNR().compute(data, Path("exp/test"))


def test_all_problems_are_counted(data):
    for id in "abc":
        Path(f"data/{id}.wav").unlink()
    with pytest.raises(RecordError, match=r"\(2 more of 3 utterances have such a problem.\)"):
        check(data)
