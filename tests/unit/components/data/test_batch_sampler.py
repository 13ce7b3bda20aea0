import logging
from itertools import chain, pairwise

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from espnet3.components.data.batch_sampler import EpochSampler
from espnet3.components.data.batching import CountBatches, DatasetPart
from espnet3.errors import ConfigError


@pytest.fixture
def ranks(monkeypatch):
    """Return a function that sets the number of ranks and our own, as a process group would."""
    return setter(monkeypatch)


def setter(monkeypatch):
    def set_world(n_ranks, rank=0):
        monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.distributed, "get_world_size", lambda: n_ranks)
        monkeypatch.setattr(torch.distributed, "get_rank", lambda: rank)

    return set_world


def sampler(n=103, size=4, **more):
    inputs = {"n_items": n, "seed": 1, **more.pop("inputs", {})}
    plan = CountBatches([DatasetPart(np.arange(n))], size, n_items=n, seed=1)
    return EpochSampler(plan, inputs, **more)


def take(source, n_steps, ranks, n_ranks):
    """Return the samples of the next steps of all ranks, as if each resumed in its process."""
    state, seen = source.state_dict(), []
    for rank in range(n_ranks):
        ranks(n_ranks, rank)
        source.load_state_dict(state)
        batches = source.begin()[:n_steps]
        for batch in batches:
            seen += batch.tolist()
            source.n_steps += 1
    return seen, len(batches)


def lists(batches):
    return [batch.tolist() for batch in batches]


def test_ranks_share_the_batches_of_one_plan(ranks):
    one = lists(sampler().begin())
    dealt = []
    for rank in range(3):
        ranks(3, rank)
        dealt.append(lists(sampler().begin()))
    assert [len(batches) for batches in dealt] == [9, 9, 9]
    in_turn = [batch for step in zip(*dealt, strict=True) for batch in step]
    assert in_turn[:24] == one[:24]  # the last step shares what is left
    assert sorted(chain(*in_turn)) == list(range(103))


def test_epochs_differ_and_can_be_had_again():
    source = sampler()
    first = lists(source.begin())
    source.set_epoch(1)
    assert lists(source.begin()) != first
    source.set_epoch(0)
    assert lists(source.begin()) == first
    assert lists(source.begin()) == first  # a second pass, as validation makes


def test_a_resumed_sampler_goes_on_with_the_next_batch():
    source = sampler()
    source.set_epoch(2)
    batches = lists(source.begin())
    for _ in range(5):
        source.n_steps += 1
    state = source.state_dict()
    assert state["n_batches_done"] == 5
    other = sampler()
    other.load_state_dict(state)
    other.set_epoch(2)
    assert len(other) == 26
    assert other.state_dict() == state
    assert lists(other.begin()) == batches[5:]
    for _ in range(21):
        other.n_steps += 1
    assert other.state_dict()["done"] == [[1, 26]]
    assert len(other) == 26
    other.set_epoch(3)
    assert len(other.begin()) == 26


def test_another_epoch_than_the_one_of_the_state_starts_at_its_beginning():
    source = sampler()
    source.begin()
    source.n_steps += 1
    other = sampler()
    other.load_state_dict(source.state_dict())
    other.set_epoch(1)
    assert len(other.begin()) == 26


def test_a_finished_epoch_has_nothing_left():
    source = sampler()
    for _ in source.begin():
        source.n_steps += 1
    other = sampler()
    other.load_state_dict(source.state_dict())
    other.set_epoch(0)
    assert other.begin() == []
    assert len(other) == 26


@pytest.mark.parametrize("worlds", [(2, 3), (3, 1, 2), (1, 4, 4), (4, 2, 1, 3)])
def test_the_number_of_ranks_may_change_in_mid_epoch(ranks, worlds):
    source, seen, n_steps = sampler(), [], 0
    for n_ranks, _ in pairwise(worlds):
        part, steps = take(source, 2, ranks, n_ranks)
        seen += part
        n_steps += steps
    source.load_state_dict(source.state_dict())
    ranks(worlds[-1])
    length = len(source)
    part, steps = take(source, 1000, ranks, worlds[-1])
    seen += part
    assert sorted(seen) == list(range(103))
    assert length == n_steps + steps


@example(changes=[(5, 1)], n=6, size=1, n_ranks=1)
@given(
    changes=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 4)), max_size=5),
    n=st.integers(6, 60),
    size=st.integers(1, 5),
    n_ranks=st.integers(1, 6),
)
def test_whatever_the_changes_no_sample_comes_twice_and_few_are_lost(changes, n, size, n_ranks):
    source, seen = sampler(n=n, size=size), []
    with pytest.MonkeyPatch.context() as patch:
        ranks = setter(patch)
        for n_then, n_steps in [*changes, (n_ranks, 1000)]:
            ranks(n_then)
            source.load_state_dict(source.state_dict())
            length = len(source)
            part, _ = take(source, n_steps, ranks, n_then)
            seen += part
            assert sum(done for _, done in source.state_dict()["done"]) <= length
    assert len(seen) == len(set(seen))
    # Single samples do not fill a step of those who came to the end of the epoch.
    at_the_end = n_ranks if size > 1 else max(n_then for n_then, _ in [*changes, (n_ranks, 1)])
    assert len(seen) > n - at_the_end
    assert length == sum(done for _, done in source.state_dict()["done"])


def test_too_little_for_the_ranks_that_are_there_after_a_change_ends_the_epoch(ranks, caplog):
    source = sampler(n=9, size=4)
    take(source, 2, ranks, 1)
    ranks(2)
    with caplog.at_level(logging.WARNING):
        source.load_state_dict(source.state_dict())
    assert "the last 1 samples of epoch 0 are left out, since they are too few for a step of 2" in (
        caplog.text
    )
    assert len(source) == 2
    assert source.begin() == []


def test_a_state_of_other_batches_starts_the_epoch_anew_and_says_why(caplog):
    source = sampler()
    source.set_epoch(3)
    source.begin()
    source.n_steps += 1
    other = sampler(inputs={"seed": 2})
    with caplog.at_level(logging.WARNING):
        other.load_state_dict(source.state_dict())
    assert "epoch 3 starts over" in caplog.text
    assert "1 batches into the epoch" in caplog.text
    assert "seed" in caplog.text
    assert other.epoch == 3
    assert len(other.begin()) == 26


def test_a_state_is_of_plain_values():
    import io

    source = sampler()
    source.begin()
    source.n_steps += 1
    file = io.BytesIO()
    torch.save(source.state_dict(), file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == source.state_dict()


def test_samples_that_fit_no_step_are_told_once_and_are_others_in_each_epoch(ranks, caplog):
    ranks(4)
    source, left_out = sampler(n=11, size=1), set()
    for epoch in range(20):
        seen = set()
        for rank in range(4):
            ranks(4, rank)
            source.set_epoch(epoch)
            batches = source.begin()
            assert list(map(len, batches)) == [1, 1]
            seen |= {int(batch[0]) for batch in batches}
        left_out |= set(range(11)) - seen
    assert left_out == set(range(11))
    assert caplog.text.count("3 of 11 samples are left out") == 1


def test_what_fits_no_step_comes_after_a_change_of_ranks(ranks):
    source = sampler(n=11, size=1)
    first, _ = take(source, 1, ranks, 4)
    second, _ = take(source, 1000, ranks, 1)
    assert sorted(first + second) == list(range(11))


def test_fewer_samples_than_ranks_name_the_key(ranks):
    ranks(8)
    with pytest.raises(ConfigError, match=r"dataloader.valid: There are 8 ranks.*fewer devices"):
        len(sampler(n=5, key="dataloader.valid"))


def test_epochs_may_have_different_lengths():
    class Growing:
        def batches(self, epoch):
            return [np.array([i]) for i in range(3 + epoch)]

    source = EpochSampler(Growing(), {})
    source.begin()
    source.set_epoch(1)
    assert len(source) == len(source.begin()) == 4


# Batches of all ranks together


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_a_global_batch_is_shared_by_the_ranks(ranks, n_ranks):
    whole, dealt = lists(sampler().begin()), []
    for rank in range(n_ranks):
        ranks(n_ranks, rank)
        source = sampler(is_global=True)
        dealt.append(lists(source.begin()))
        # 25 batches of 4, and one of 3, which four ranks cannot share.
        assert len(source) == len(dealt[0]) == (25 if n_ranks == 4 else 26)
    for step, batch in enumerate(whole[:24]):
        parts = [own[step] for own in dealt]
        assert parts == [batch[rank::n_ranks] for rank in range(n_ranks)]
    assert sorted(chain(*chain(*dealt))) == list(range(103))
    assert min(len(batch) for own in dealt for batch in own) >= 1


def test_global_batches_that_are_too_small_are_joined(ranks):
    taken = []
    for rank in range(3):
        ranks(3, rank)
        taken.append(lists(sampler(n=10, size=2, is_global=True).begin()))
    assert [len(own) for own in taken] == [2, 2, 2]
    assert sorted(chain(*chain(*taken))) == list(range(10))
    ranks(3)
    assert len(sampler(n=10, size=2, is_global=True, drop_last=True).begin()) == 2
    with pytest.raises(ConfigError, match=r"There are 3 ranks, but only 2 samples.*fewer devices"):
        sampler(n=2, is_global=True).begin()


@pytest.mark.parametrize("worlds", [(2, 3), (3, 1, 2), (1, 4, 4)])
def test_global_batches_go_on_with_another_number_of_ranks(ranks, worlds):
    source, seen = sampler(is_global=True), []
    for n_ranks in worlds[:-1]:
        got, _ = take(source, 5, ranks, n_ranks)
        # Each rank counted its own steps; those of one are the state of all.
        seen += got
        state = source.state_dict()
        source = sampler(is_global=True)
        source.load_state_dict(state)
    got, _ = take(source, 100, ranks, worlds[-1])
    assert sorted(seen + got) == list(range(103))


def test_a_change_of_what_a_batch_is_starts_the_epoch_over(caplog):
    source = sampler()
    source.begin()
    source.n_steps += 1
    other = sampler(is_global=True, inputs={"batch_is_global": True})
    other.load_state_dict(source.state_dict())
    assert "starts over" in caplog.text
    assert "batch_is_global" in caplog.text
