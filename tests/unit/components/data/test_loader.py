import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from itertools import chain

import numpy as np
import pytest
import torch

from espnet3.components.data.collate import PadCollate
from espnet3.components.data.dataset import CombinedDataset, TransformedDataset
from espnet3.components.data.errors import AudioError, DataError
from espnet3.components.data.loader import GRACE_SECONDS, build_loader
from espnet3.components.data.loader_config import LoaderConfig
from espnet3.components.data.sources.kaldi import Dataset as KaldiDataset
from espnet3.errors import ConfigError, ResourceError

RATE = 100


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


class Speech:
    """Utterances of speech-like lengths; `bad` ones cannot be read."""

    def __init__(self, n=50, name="u", bad=(), error=None):
        lengths = np.random.default_rng(n).lognormal(1.5, 0.6, n)
        self.seconds = np.clip(lengths, 0.5, 20.0).round(2)
        self.name, self.bad, self.error = name, set(bad), error or DataError("broken file x.wav.")

    def __len__(self):
        return len(self.seconds)

    def __getitem__(self, index):
        if index in self.bad:
            raise self.error
        speech = np.full(round(self.seconds[index] * RATE), index, np.float32)
        return {"utt_id": f"{self.name}{index}", "speech": speech, "sample_rate": RATE}

    def durations(self):
        return self.seconds


def loader(dataset, *, split="train", seed=7, collate_fn=None, lengths=None, **settings):
    config = LoaderConfig(**settings)
    collate = collate_fn or PadCollate()
    return build_loader(
        dataset, config, collate_fn=collate, seed=seed, split=split, lengths=lengths
    )


def ids(batches):
    return [batch["utt_id"] for batch in batches]


def all_ids(batches):
    return list(chain(*ids(batches)))


def problem(function, kind=ConfigError):
    with pytest.raises(kind) as caught:
        function()
    return str(caught.value)


def fails_at(batches, kind=DataError):
    return problem(lambda: list(batches), kind)


# Batches and what is known of them


def test_training_is_shuffled_and_validation_is_not():
    data = Speech(20)
    assert all_ids(loader(data, split="valid", batch_size=4)) == [f"u{i}" for i in range(20)]
    train = loader(data, batch_size=4)
    first = ids(train)
    assert sorted(chain(*first)) == sorted(f"u{i}" for i in range(20))
    train.sampler.set_epoch(1)
    assert ids(train) != first
    assert len(train) == 5


@pytest.mark.parametrize("settings", [{"batch_size": 8}, {"batch_seconds": 30}])
@pytest.mark.parametrize("n_workers", [0, 2])
def test_each_batch_is_described(settings, n_workers):
    data = Speech()
    batches = loader(data, num_workers=n_workers, **settings)
    assert batches.last_batch is None
    seen = []
    for batch in batches:
        info = batches.last_batch
        assert [f"u{i}" for i in info.indices] == batch["utt_id"]
        assert info.n_samples == len(batch["utt_id"])
        assert info.seconds == pytest.approx(float(batch["speech_lengths"].sum()) / RATE)
        assert info.padded_seconds == pytest.approx(batch["speech"].numel() / RATE)
        assert info.wait_seconds > 0
        seen += info.indices
    assert sorted(seen) == list(range(50))
    assert len(batches) == len(list(batches))


def test_without_durations_the_seconds_of_a_batch_are_unknown():
    batches = loader([{"x": [1]}, {"x": [2]}], batch_size=2)
    list(batches)
    assert batches.last_batch.seconds is None
    assert batches.last_batch.padded_seconds is None
    timed = loader([{"x": [1]}, {"x": [2]}], batch_size=2, lengths=[2.0, 3.0])
    list(timed)
    assert timed.last_batch.seconds == 5.0


def test_workers_change_nothing_and_are_kept():
    data = Speech()
    alone, helped = (loader(data, batch_seconds=30, num_workers=n) for n in (0, 2))
    pids = []
    for epoch in range(2):
        for source in (alone, helped):
            source.sampler.set_epoch(epoch)
        assert ids(alone) == ids(helped)
        pids.append([worker.pid for worker in helped._inner._iterator._workers])
    assert pids[0] == pids[1]


def test_an_iteration_that_was_given_up_leaves_nothing_behind():
    batches = loader(Speech(), split="valid", batch_size=4, num_workers=2)
    expected = ids(batches)
    for _ in range(2):  # as Lightning's sanity check
        next(iter(batches))
    assert ids(batches) == expected
    workers = batches._inner._iterator._workers
    batches.close()
    assert not any(worker.is_alive() for worker in workers)
    assert ids(batches) == expected
    batches.close()


def test_a_program_that_forgets_its_workers_ends_at_once(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("""
from espnet3.components.data.loader import build_loader
from espnet3.components.data.loader_config import LoaderConfig

config = LoaderConfig(batch_size=2, num_workers=2)
loader = build_loader(range(8), config, collate_fn=list, seed=0, split="train")
print(sorted(sum(loader, [])))
""")
    process = subprocess.Popen(
        [sys.executable, "-u", program], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    with process:
        assert process.stdout.readline() == "[0, 1, 2, 3, 4, 5, 6, 7]\n"
        start = time.monotonic()  # its imports may have taken long
        assert process.wait(120) == 0
    assert time.monotonic() - start < GRACE_SECONDS


@pytest.mark.parametrize("split", ["train", "valid"])
def test_random_choices_change_with_the_epoch_in_training_only(split):
    def augment(sample, rng):
        return {**sample, "noise": rng.random(), "global": float(torch.rand(()))}

    batches = loader(TransformedDataset(Speech(4), augment), split=split, batch_size=4)
    drawn = []
    for epoch in (0, 1):  # Lightning tells it to the validation set as well
        batches.sampler.set_epoch(epoch)
        (batch,) = batches
        drawn.append({*batch["noise"].tolist(), *batch["global"].tolist()})
    assert (drawn[0] == drawn[1]) == (split == "valid")
    assert len(drawn[0]) == 8


def test_drop_last_that_leaves_nothing_is_told_before_training():
    told = problem(lambda: len(loader(Speech(3), batch_size=4, drop_last=True)))
    assert told.startswith("dataloader.train: drop_last leaves no batch of an epoch.")


@pytest.mark.parametrize("n_workers", [0, 2])
def test_the_global_generators_are_left_alone(n_workers):
    def augment(sample):
        return {**sample, "noise": float(torch.rand(())) + np.random.rand()}

    batches = loader(TransformedDataset(Speech(8), augment), batch_size=4, num_workers=n_workers)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist()
    list(batches)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]


def test_seconds_and_bins_need_no_durations_of_the_dataset(tmp_path):
    data = Speech(30)
    file = tmp_path / "speech_shape"
    file.write_text("".join(f"u{i} {round(s * RATE)}\n" for i, s in enumerate(data.seconds)))
    data.durations = lambda: None
    by_bins = loader(data, batch_bins=3000, shape_file=str(file))
    by_seconds = loader(data, batch_seconds=30, shape_file=str(file), sample_rate=RATE)
    sizes = [batch["speech"].numel() for batch in by_bins]
    assert max(sizes) <= 3000
    assert ids(by_bins) == ids(by_seconds)


def test_max_padding_makes_even_batches_by_count():
    batches = loader(Speech(200), batch_size=8, max_padding=0.1)
    for batch in batches:
        lengths = batch["speech_lengths"].float()
        assert lengths.mean() >= 0.9 * lengths.max()
        assert len(lengths) <= 8


def test_a_corpus_in_shards_is_read_a_few_at_a_time():
    class Sharded(Speech):
        def locality(self):
            return np.arange(len(self)) // 1000

    def n_shards(batches):
        return np.mean([len(set(batch // 1000)) for batch in batches.sampler.plan.batches(0)])

    data = Sharded(10_000)
    assert n_shards(loader(data, batch_seconds=60, buffer_shards=2)) < 2.5
    assert n_shards(loader(data, batch_seconds=60, buffer_shards=0)) > 4
    assert n_shards(loader(data, batch_size=12, buffer_shards=2)) <= 3


def test_a_batch_sampler_of_the_users_own():
    batches = loader(Speech(6), batch_sampler=[[0, 1, 2], [5], [4, 3]])
    assert ids(batches) == [["u0", "u1", "u2"], ["u5"], ["u4", "u3"]]
    ordered = loader(Speech(5), sampler=[4, 3, 2, 1, 0], batch_size=2)
    assert ids(ordered) == [["u4", "u3"], ["u2", "u1"], ["u0"]]


def test_worker_init_fn_is_called_in_each_worker(tmp_path):
    def init(worker_id):
        (tmp_path / str(worker_id)).touch()

    list(loader(Speech(8), batch_size=2, num_workers=2, worker_init_fn=init))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0", "1"]


# Weights and augmentation


def test_weights_say_how_often_samples_come():
    parts = CombinedDataset([Speech(10, "a"), Speech(20, "b")], weights=[2.0, 0.5])
    batches = loader(parts, batch_seconds=60)
    seen = []
    for epoch in range(2):
        batches.sampler.set_epoch(epoch)
        seen.append(all_ids(batches))
        assert len(seen[-1]) == 30
        assert all(seen[-1].count(f"a{i}") == 2 for i in range(10))
    both = sorted(name for name in seen[0] + seen[1] if name.startswith("b"))
    assert both == sorted(f"b{i}" for i in range(20))


@pytest.mark.parametrize("use_global", [False, True])
def test_augmentation_follows_from_seed_epoch_and_sample(use_global):
    def augment(sample, rng):
        return {**sample, "noise": float(np.random.rand() if use_global else rng.random())}

    data = CombinedDataset([TransformedDataset(Speech(24), augment)], weights=[2.0])

    def noise(epoch=0, n_workers=0, skipped=0, **settings):
        source = loader(data, batch_size=4, num_workers=n_workers, **settings)
        source.sampler.set_epoch(epoch)
        if skipped:
            state = source.state_dict()
            state["done"] = [[1, skipped]]
            source.load_state_dict(state)
        return [(batch["utt_id"], batch["noise"].tolist()) for batch in source]

    first = noise()
    values = list(chain(*(values for _, values in first)))
    assert len(set(values)) == 48  # two copies of a sample are not the same
    assert noise(n_workers=2) == first
    assert noise(skipped=5) == first[5:]
    assert noise(epoch=1)[0][1] != first[0][1]
    assert noise(seed=8)[0][1] != first[0][1]


# Resuming


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_stopped_epoch_goes_on_with_the_next_batch(n_workers):
    data = Speech()
    whole = loader(data, batch_seconds=30)
    whole.sampler.set_epoch(3)
    expected = ids(whole)

    stopped = loader(data, batch_seconds=30, num_workers=n_workers)
    stopped.sampler.set_epoch(3)
    iterator = iter(stopped)
    seen = [next(iterator)["utt_id"] for _ in range(4)]
    state = stopped.state_dict()
    assert state["n_batches_done"] == 4  # not those that workers have read in advance

    resumed = loader(data, batch_seconds=30, num_workers=n_workers)
    iterator = iter(resumed)  # as Lightning does, before it restores anything
    resumed.load_state_dict(state)
    resumed.sampler.set_epoch(3)
    assert len(resumed) == len(expected)
    assert seen + [batch["utt_id"] for batch in iterator] == expected
    resumed.sampler.set_epoch(4)
    assert len(ids(resumed)) == len(expected)


def test_changed_settings_start_the_epoch_anew(caplog):
    stopped = loader(Speech(), batch_seconds=30)
    next(iter(stopped))
    resumed = loader(Speech(), batch_seconds=31)
    with caplog.at_level(logging.WARNING):
        resumed.load_state_dict(stopped.state_dict())
    assert "batch_seconds: 30" in caplog.text
    assert len(all_ids(resumed)) == 50


def test_nothing_is_read_before_the_first_batch_is_asked_for():
    class Counting(Speech):
        n_read = 0

        def __getitem__(self, index):
            self.n_read += 1
            return super().__getitem__(index)

    data = Counting()
    batches = loader(data, batch_size=4)
    iterator = iter(batches)
    len(batches)
    assert data.n_read == 0
    next(iterator)
    assert data.n_read == 4


# What can be wrong


class Empty(Speech):
    def __init__(self):
        super().__init__(1)
        self.seconds = self.seconds[:0]


def test_settings_that_do_not_fit_the_data():
    assert "dataset.train has no samples" in problem(lambda: loader(None, batch_size=2))
    assert "Add a dataset: train: [{data_src" in problem(lambda: loader(Empty(), batch_size=2))
    no_durations = [{"x": [1]}]
    assert "stage collect_stats" in problem(lambda: loader(no_durations, batch_seconds=2))
    assert "max_seconds is set" in problem(
        lambda: loader(no_durations, batch_size=1, max_seconds=2)
    )
    tiny = CombinedDataset([Speech(10)], [0.01], ["dataset.train.0"])
    assert "Write at least weight: 0.1" in problem(lambda: loader(tiny, batch_size=2))
    own = {"sampler": [0], "batch_size": 1, "max_seconds": 3}
    assert "min_seconds and max_seconds do nothing" in problem(lambda: loader(Speech(), **own))


def test_an_utterance_longer_than_the_budget_is_named_with_two_ways_on():
    data = CombinedDataset(
        [Speech(5), Speech(9, "b")], names=["dataset.train.0", "dataset.train.1"]
    )
    data.datasets[1].seconds[3] = 41.2
    message = problem(lambda: loader(data, batch_seconds=20))
    assert "batch_seconds is 20, but 1 of 14 samples are longer" in message
    assert "b3 (item 3 of dataset.train.1) with 41.2 s" in message
    assert "batch_seconds: 42" in message
    assert "max_seconds: 20" in message
    assert len(all_ids(loader(data, batch_seconds=20, max_seconds=20))) == 13
    assert len(all_ids(loader(data, batch_seconds=42))) == 14


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_corrupt_file_in_mid_epoch_is_named_without_noise(tmp_path, write_wav, n_workers):
    folder = tmp_path / "it's data"
    for i in range(12):
        write_wav(folder / f"{i}.wav", 0.1 + 0.01 * i)
    scp = "".join(f"utt{i} {folder}/{i}.wav\n" for i in range(12))
    (folder / "wav.scp").write_text(scp)
    (folder / "text").write_text("".join(f"utt{i} hello\n" for i in range(12)))
    data = CombinedDataset([KaldiDataset(folder)], names=["dataset.train.0"])
    (folder / "7.wav").write_bytes(b"RIFF....")
    message = fails_at(loader(data, batch_size=2, num_workers=n_workers), AudioError)
    assert "item 7 of dataset.train.0" in message
    assert "7.wav cannot be read as audio" in message
    assert "dataloader.train.on_error: skip" in message
    assert "Traceback" not in message
    assert len(message.splitlines()) == 1


@pytest.mark.parametrize("n_workers", [0, 1])
def test_an_error_of_the_users_code_shows_where_it_is(n_workers):
    def forgets(sample):
        return {**sample, "text": sample["txt"]}

    data = TransformedDataset(Speech(4), forgets)
    message = fails_at(loader(data, split="valid", batch_size=2, num_workers=n_workers))
    assert message.startswith("item 0 of the dataset: KeyError: 'txt'")
    assert "test_loader.py:" in message
    assert "in forgets" in message
    assert len(message.splitlines()) < 15


def test_an_error_of_the_collate_fn_names_the_batch():
    def fails(samples):
        raise RuntimeError("sizes differ")

    message = fails_at(loader(Speech(4), split="valid", batch_size=2, collate_fn=fails))
    assert "The batch of item 0 of the dataset, item 1 of the dataset: RuntimeError" in message


@pytest.mark.parametrize("n_workers", [0, 2])
def test_samples_that_cannot_be_read_can_be_skipped(n_workers, caplog):
    batches = loader(
        Speech(12, bad=[3, 8]), split="valid", batch_size=3, on_error="skip", num_workers=n_workers
    )
    with caplog.at_level(logging.WARNING):
        seen = ids(batches)
    assert [len(batch) for batch in seen] == [3, 2, 2, 3]
    assert batches.n_errors == 2
    assert "left out item 3 of the dataset: broken file x.wav." in caplog.text


def test_where_a_whole_batch_cannot_be_read_the_next_sample_stands_in():
    batches = loader(Speech(6, bad=[2, 3]), split="valid", batch_size=2, on_error="skip")
    assert ids(batches) == [["u0", "u1"], ["u4"], ["u4", "u5"]]
    none = loader(Speech(3, bad=range(3)), batch_size=2, on_error="skip")
    assert "A whole batch" in fails_at(none)


def test_too_many_errors_stop_the_run():
    batches = loader(Speech(40, bad=range(20)), batch_size=8, on_error="skip", max_errors=5)
    message = fails_at(batches)
    assert "6 samples could not be read, which is more than max_errors: 5" in message
    assert "max_errors: 50" in message


def test_a_worker_that_is_killed_is_told_with_what_to_do():
    class Deadly(Speech):
        def __getitem__(self, index):
            os.kill(os.getpid(), signal.SIGKILL)

    message = fails_at(loader(Deadly(), batch_size=2, num_workers=1), ResourceError)
    assert "a worker that reads samples died" in message
    assert "fewer than num_workers: 1" in message


def test_a_worker_that_hangs_is_told():
    import threading

    class Stuck(Speech):
        def __getitem__(self, index):
            threading.Event().wait(60)

    before = set(multiprocessing.active_children())
    message = fails_at(loader(Stuck(), batch_size=2, num_workers=1, timeout=0.2), ResourceError)
    assert "no batch came within timeout: 0.2 seconds" in message
    assert set(multiprocessing.active_children()) <= before
