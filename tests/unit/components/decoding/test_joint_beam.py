"""Joint search against exhaustive and greedy search, and in batches of any size."""

from dataclasses import replace
from itertools import groupby, product

import pytest
import torch

from espnet3.components.data.errors import DataError
from espnet3.components.decoding.joint_beam import JointBeam, best_tokens
from espnet3.errors import ConfigError
from tests.helpers.decoding_parts import make_lm, make_model, make_speech


def of_network(step, state, tokens, end) -> float:
    """Return the log-probability of tokens and their end, step by step."""
    total, last = 0.0, end
    for token in (*tokens, end):
        log_probs, state = step(torch.tensor([last]), state)
        total, last = total + float(log_probs[0, token]), token
    return total


def of_ctc(log_probs: torch.Tensor, tokens: tuple[int, ...]) -> float:
    paths = product(range(log_probs.shape[1]), repeat=len(log_probs))
    total = sum(
        float(log_probs[range(len(path)), list(path)].double().sum().exp())
        for path in paths
        if tuple(token for token, _ in groupby(path) if token) == tokens
    )
    return float(torch.tensor(total).log())


@pytest.mark.parametrize(
    ("ctc_weight", "lm_weight", "length_bonus"),
    [
        (0.3, 0.0, 0.0),
        (0.3, 0.4, 0.7),
        (0.0, 0.0, 0.0),
        (0.0, 0.5, -0.3),
        (1.0, 0.0, 0.0),
        (1.0, 0.5, 2.0),
    ],
)
@torch.inference_mode()
def test_a_huge_beam_finds_what_an_exhaustive_search_finds(ctc_weight, lm_weight, length_bonus):
    n_tokens, end = 4, 3
    model, lm = make_model(n_tokens), make_lm(n_tokens)
    encoded, lengths = make_speech(3, 4)
    beam = JointBeam(
        beam_size=100, ctc_weight=ctc_weight, lm=lm, lm_weight=lm_weight,
        length_bonus=length_bonus, n_best=6,
    )  # fmt: skip
    found = beam(model, encoded, lengths)
    for row, length in enumerate(lengths.tolist()):
        speech = encoded[[row], :length]
        log_probs = model.ctc_log_probs(speech)[0]
        scored = {}
        for tokens in (t for n in range(length + 1) for t in product((1, 2), repeat=n)):
            total = length_bonus * len(tokens)
            if ctc_weight < 1:
                start = model.decoder.start(speech, torch.tensor([length]))
                total += (1 - ctc_weight) * of_network(model.decoder.step, start, tokens, end)
            if lm_weight > 0:
                total += lm_weight * of_network(lm.step, lm.start(1), tokens, end)
            if ctc_weight > 0:
                total += ctc_weight * of_ctc(log_probs, tokens)
            scored[tokens] = total
        scored = {tokens: total for tokens, total in scored.items() if total > float("-inf")}
        best = sorted(scored, key=lambda tokens: -scored[tokens])[:6]
        assert [one.tokens for one in found[row]] == best
        for one in found[row]:
            assert one.score == pytest.approx(scored[one.tokens], abs=1e-5)


@torch.inference_mode()
def test_scores_by_part_add_up_to_the_score():
    model, lm = make_model(12), make_lm(12)
    beam = JointBeam(beam_size=4, ctc_weight=0.4, lm=lm, lm_weight=0.2, length_bonus=0.5, n_best=3)
    for best in beam(model, *make_speech(4, 12)):
        assert len(best) == 3
        assert [one.score for one in best] == sorted((one.score for one in best), reverse=True)
        for one in best:
            parts = 0.4 * one.scores["ctc"] + 0.6 * one.scores["attention"]
            parts += 0.2 * one.scores["lm"] + 0.5 * len(one.tokens)
            assert one.score == pytest.approx(parts, abs=1e-9)


def greedy(model, encoded, length) -> tuple[int, ...]:
    state, last, found = model.decoder.start(encoded, length), model.n_tokens - 1, []
    while len(found) < int(length):
        log_probs, state = model.decoder.step(torch.tensor([last]), state)
        log_probs[:, 0] = float("-inf")  # blank is no token
        last = int(log_probs.argmax())
        if last == model.n_tokens - 1:
            break
        found.append(last)
    return tuple(found)


@torch.inference_mode()
def test_beam_1_without_ctc_is_greedy_attention():
    model = make_model(6)
    encoded, lengths = make_speech(40, 14)
    found = JointBeam(beam_size=1, ctc_weight=0.0)(model, encoded, lengths)
    wanted = [greedy(model, encoded[[i]], lengths[[i]]) for i in range(40)]
    assert [best[0].tokens for best in found] == wanted
    assert len({len(tokens) for tokens in wanted}) > 3


@pytest.mark.parametrize(
    ("n", "n_candidates"), [(200, None), (100, 7)], ids=["all-tokens", "candidates"]
)
@torch.inference_mode()
def test_the_size_of_the_batch_changes_nothing(n, n_candidates):
    model, lm = make_model(20), make_lm(20)
    encoded, lengths = make_speech(n, 12)
    beam = JointBeam(beam_size=5, n_best=2, lm=lm, lm_weight=0.3, n_candidates=n_candidates)

    def decode(size: int):
        batches = [slice(i, i + size) for i in range(0, n, size)]
        return [best for batch in batches for best in beam(model, encoded[batch], lengths[batch])]

    alone, together = decode(1), decode(50)
    assert [[one.tokens for one in best] for best in alone] == [
        [one.tokens for one in best] for best in together
    ]
    for first, second in zip(alone, together, strict=True):
        for one, other in zip(first, second, strict=True):
            assert one.score == pytest.approx(other.score, abs=1e-4)
    assert len({best[0].tokens for best in alone}) > n // 2


@torch.inference_mode()
def test_long_and_short_utterances_are_searched_apart_and_come_in_their_order(monkeypatch):
    model = make_model(20)
    encoded, _ = make_speech(24, 40)
    lengths = torch.tensor([40, 3, 30, 5, 38, 8] * 4)
    beam = JointBeam(beam_size=3)
    sizes = []
    search = beam.search
    monkeypatch.setattr(beam, "search", lambda *args: sizes.append(args[1].shape) or search(*args))
    together = beam(model, encoded, lengths)
    assert [tuple(shape[:2]) for shape in sizes] == [(12, 40), (12, 8)]
    alone = [beam(model, encoded[[i]], lengths[[i]])[0] for i in range(24)]
    assert [one[0].tokens for one in together] == [one[0].tokens for one in alone]
    assert len(beam(model, encoded[:6], lengths[:6])) == 6
    assert tuple(sizes[-1][:2]) == (6, 40)  # too few for two batches


@torch.inference_mode()
def test_enough_candidates_find_the_same_as_all_tokens():
    model = make_model(20)
    speech = make_speech(30, 12)
    whole = JointBeam(beam_size=5, n_best=3)(model, *speech)
    some = JointBeam(beam_size=5, n_best=3, n_candidates=17)(model, *speech)
    assert [[h.tokens for h in best] for best in whole] == [
        [h.tokens for h in best] for best in some
    ]


@torch.inference_mode()
def test_a_wider_beam_never_scores_worse_here():
    model = make_model(12)
    speech = make_speech(20, 12)
    scores = [
        sum(best[0].score for best in JointBeam(beam_size=size)(model, *speech))
        for size in (1, 4, 16)
    ]
    assert scores == sorted(scores)
    assert scores[0] < scores[-1]


@torch.inference_mode()
def test_ties_go_to_the_smaller_ids():
    model = make_model(6)
    for parameter in model.parameters():
        parameter.zero_()
    best = JointBeam(beam_size=3, ctc_weight=0.0, n_best=3)(model, *make_speech(2, 4))
    assert [one.tokens for one in best[0]] == [(1, 1, 1, 1), (1, 1, 1, 2), (1, 1, 1, 3)]


@torch.inference_mode()
def test_results_are_no_longer_than_allowed():
    model = make_model(6)
    encoded, lengths = make_speech(20, 20)
    results = JointBeam(max_length_ratio=0.2, length_bonus=50.0, n_best=3)(model, encoded, lengths)
    for best, length in zip(results, lengths.tolist(), strict=True):
        assert {len(one.tokens) for one in best} == {length // 5}


@torch.inference_mode()
def test_utterances_without_frames_have_empty_results():
    model = make_model(6)
    encoded, lengths = make_speech(3, 6)
    lengths[1] = 0
    results = JointBeam()(model, encoded, lengths)
    assert results[1][0].tokens == ()
    assert JointBeam()(model, encoded[:, :0], torch.zeros(3, dtype=torch.long))[2][0].tokens == ()
    assert JointBeam()(model, encoded[:0], lengths[:0]) == []


@torch.inference_mode()
def test_ctc_alone_needs_no_attention_decoder():
    with_decoder, without = make_model(8), make_model(8, has_decoder=False)
    without.ctc = with_decoder.ctc
    speech = make_speech(5, 10)
    beam = JointBeam(ctc_weight=1.0)
    assert beam(with_decoder, *speech) == beam(without, *speech)
    assert set(beam(without, *speech)[0][0].scores) == {"ctc"}
    with pytest.raises(ConfigError, match=r"has no attention decoder.* ctc_weight: 1\.0"):
        JointBeam(ctc_weight=0.9)(without, *speech)


def test_a_language_model_at_a_path_is_loaded_once_when_it_is_needed(tmp_path):
    model, beam = make_model(8), WithLoad(lm=tmp_path)
    calls.clear()
    for _ in range(2):
        best = beam(model, *make_speech(2, 6))[0][0]
    assert calls == [(tmp_path, "cpu")]
    assert "lm" in best.scores


calls: list[tuple[object, str]] = []


def load(path, device):
    calls.append((path, device))
    return make_lm(8)


class WithLoad(JointBeam):
    lm_loader = f"{__name__}.load"


def test_a_language_model_of_other_tokens_is_refused():
    model = make_model(8)
    with pytest.raises(ConfigError, match=r"9 tokens, and the recogniser 8.*Train it with"):
        JointBeam(lm=make_lm(9))(model, *make_speech(2, 6))
    model.tokenizer = make_lm(8)
    model.tokenizer.tokens = tuple("01234b67")
    with pytest.raises(ConfigError, match="'5' as token 5, and the recogniser 'b'"):
        JointBeam(lm=make_lm(8))(model, *make_speech(2, 6))


def test_speech_that_is_not_a_number_is_refused():
    encoded, lengths = make_speech(3, 6)
    encoded[1, 2] = float("nan")
    with pytest.raises(DataError, match=r"1 of 3 utterances \(in this batch number 1\)"):
        JointBeam()(make_model(8), encoded, lengths)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("beam_size", 0),
        ("n_best", 0),
        ("ctc_weight", -0.1),
        ("ctc_weight", 30),
        ("lm_weight", -1.0),
    ],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(ConfigError, match=rf"decoder\.{name} is {value}.* Write: {name}: "):
        JointBeam(**{name: value})


@torch.inference_mode()
def test_an_utterance_leaves_the_batch_when_nothing_can_beat_its_best(monkeypatch):
    model = make_model(6, sharpness=200.0)  # CTC is sure
    encoded, lengths = make_speech(8, 16)
    n_rows: list[int] = []
    step = model.decoder.step

    def counting(tokens, state):
        n_rows.append(len(tokens))
        return step(tokens, state)

    monkeypatch.setattr(model.decoder, "step", counting)
    results = JointBeam(beam_size=4, ctc_weight=0.9)(model, encoded, lengths)
    n_steps = [len(best[0].tokens) + 1 for best in results]
    assert len(n_rows) < 16
    assert max(n_steps) <= len(n_rows) <= max(n_steps) + 2
    assert n_rows[-1] < n_rows[1]


class ShortBeam(JointBeam):
    """Takes at most two tokens and at least `least`, and ends without asking."""

    def __init__(self, least=0, **settings):
        super().__init__(**settings)
        self.least = least
        self.settings = replace(self.settings, is_end_sure_at_limit=True, rewards_end=True)

    def limits(self, lengths):
        return torch.full_like(lengths, 2), torch.full_like(lengths, self.least)


@torch.inference_mode()
def test_at_a_sure_limit_the_end_has_no_score():
    model = make_model(4)
    encoded, lengths = make_speech(4, 5)
    beam = ShortBeam(least=1, ctc_weight=0.0, length_bonus=50.0)
    for row, (best, *_) in enumerate(beam(model, encoded, lengths)):
        state = model.decoder.start(encoded[[row], : lengths[row]], lengths[[row]])
        total, last = 0.0, 3
        for token in best.tokens:
            log_probs, state = model.decoder.step(torch.tensor([last]), state)
            total, last = total + float(log_probs[0, token]), token
        assert len(best.tokens) == 2
        assert best.score == pytest.approx(total + 100, abs=1e-4)


@torch.inference_mode()
def test_hypotheses_that_end_too_early_are_dropped():
    model = make_model(4)
    encoded, lengths = make_speech(4, 5)
    beam = ShortBeam(least=1, ctc_weight=0.3, n_best=9, beam_size=20)
    assert all(one.tokens for some in beam(model, encoded, lengths) for one in some)


@torch.inference_mode()
def test_proposed_tokens_beside_the_end_are_all_that_is_scored():
    model = make_model(6)
    encoded, lengths = make_speech(3, 5)
    beam = JointBeam(beam_size=2, ctc_weight=0.3)
    wide = beam(model, encoded, lengths)
    beam.settings = replace(beam.settings, n_proposed=6)
    assert [one[0].tokens for one in beam(model, encoded, lengths)] == [w[0].tokens for w in wide]
    beam.settings = replace(beam.settings, n_proposed=1, n_best=2)
    first, _ = model.decoder.step(torch.full((3,), 5), model.decoder.start(encoded, lengths))
    for favourite, found in zip(
        first.argmax(-1).tolist(), beam(model, encoded, lengths), strict=True
    ):
        assert all(one.tokens[:1] in ((), (favourite,)) for one in found)


@pytest.mark.parametrize("n_tokens", [5000, 5013])  # the latter are no whole groups
def test_the_best_tokens_of_many_are_found_by_groups(n_tokens):
    scores = torch.randn(4, 12, n_tokens, generator=torch.Generator().manual_seed(0))
    scores[0, 0, -3:] = 9.0
    found = best_tokens(scores, 15).sort(-1).values
    assert torch.equal(found, scores.topk(15, -1).indices.sort(-1).values)
