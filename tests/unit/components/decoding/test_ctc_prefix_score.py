"""Prefix scores against all alignments of small cases, one by one."""

from itertools import groupby, product

import pytest
import torch

from espnet3.components.decoding.ctc_prefix_score import CTCPrefixScorer
from tests.helpers.exhaustive import pairs

N_TOKENS = 4  # blank, two tokens, end
TOKENS = (1, 2)
PREFIXES = [prefix for n in range(3) for prefix in product(TOKENS, repeat=n)]


def transcripts(log_probs: torch.Tensor) -> dict[tuple[int, ...], float]:
    """Return the probability of each transcript: the sum over its alignments."""
    found: dict[tuple[int, ...], float] = {}
    for path in product(range(N_TOKENS), repeat=len(log_probs)):
        tokens = tuple(token for token, _ in groupby(path) if token)
        probability = float(log_probs[range(len(path)), list(path)].sum().exp())
        found[tokens] = found.get(tokens, 0.0) + probability
    return found


def log_probs_of(n_utterances: int, n_frames: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(n_utterances, n_frames, N_TOKENS, generator=generator).double().log_softmax(-1)
    )


def scorer_of(log_probs: torch.Tensor, lengths: list[int]) -> CTCPrefixScorer:
    return CTCPrefixScorer([one[:n] for one, n in zip(log_probs, lengths, strict=True)])


def extended(scorer: CTCPrefixScorer, prefix: tuple[int, ...], n_utterances: int):
    state = scorer.start()
    for token in prefix:
        tokens = torch.full((n_utterances, 1), token)
        state = scorer.extend(state, torch.zeros_like(tokens), tokens)
    return state


@pytest.mark.parametrize(
    ("prefix", "n_frames"),
    pairs([p for n in range(3) for p in product(TOKENS, repeat=n)], [5, 4, 3, 2, 1]),
    ids=str,
)
def test_scores_are_sums_over_alignments(n_frames, prefix):
    log_probs = log_probs_of(2, n_frames, seed=n_frames)
    lengths = torch.tensor([n_frames, max(1, n_frames - 2)])
    scorer = scorer_of(log_probs, lengths.tolist())
    state = extended(scorer, prefix, 2)
    whole = scorer.score(state).exp()
    candidates = torch.tensor([3, 2, 0, 1]).expand(2, 1, -1)
    some = scorer.score(state, candidates).exp()
    torch.testing.assert_close(some, whole.gather(-1, candidates), rtol=1e-9, atol=1e-12)
    for row, length in enumerate(lengths.tolist()):
        wanted = transcripts(log_probs[row, :length])
        for token in TOKENS:
            longer = (*prefix, token)
            total = sum(p for tokens, p in wanted.items() if tokens[: len(longer)] == longer)
            assert whole[row, 0, token] == pytest.approx(total, abs=1e-12)
        assert whole[row, 0, -1] == pytest.approx(wanted.get(prefix, 0.0), abs=1e-12)
        assert whole[row, 0, 0] == 0


def test_prefixes_are_extended_from_any_parent():
    scorer = scorer_of(log_probs_of(2, 5), [5, 4])
    empty = torch.zeros(2, 2, dtype=torch.long)
    both = scorer.extend(scorer.start(), empty, torch.tensor([[1, 2]] * 2))
    chosen = scorer.extend(both, torch.tensor([[1, 0, 1]] * 2), torch.tensor([[1, 1, 2]] * 2))
    for place, prefix in enumerate([(2, 1), (1, 1), (2, 2)]):
        wanted = scorer.score(extended(scorer, prefix, 2))
        torch.testing.assert_close(scorer.score(chosen)[:, [place]], wanted)


def test_the_length_of_the_batch_changes_nothing():
    log_probs = log_probs_of(1, 6)
    alone = CTCPrefixScorer(log_probs)
    together = CTCPrefixScorer([log_probs[0], log_probs_of(1, 300)[0]])
    for prefix in [(), (1,), (1, 1), (1, 2, 1), (1, 1, 1, 1, 1)]:  # the last one is impossible
        first = alone.score(extended(alone, prefix, 1))
        torch.testing.assert_close(together.score(extended(together, prefix, 2))[:1], first)


@pytest.mark.parametrize("sharpness", [1, 40])  # sharp ones do not fit into sums of blocks
def test_many_long_utterances_give_what_single_ones_give(sharpness):
    log_probs = (sharpness * log_probs_of(40, 300)).log_softmax(-1)
    lengths = [300 - 7 * n for n in range(40)]
    together = extended(scorer_of(log_probs, lengths), (1, 2, 2, 1), 40)
    for n in (0, 1, 39):
        scorer = scorer_of(log_probs[n : n + 1], lengths[n : n + 1])
        alone = extended(scorer, (1, 2, 2, 1), 1)
        own = together.anywhere[n : n + 1, :, : lengths[n] + 1]
        torch.testing.assert_close(own, alone.anywhere, rtol=1e-12, atol=1e-9)


def test_utterances_that_are_left_out_leave_the_others_as_they_are():
    scorer = scorer_of(log_probs_of(3, 6), [6, 5, 4])
    state = extended(scorer, (2, 1), 3)
    before = scorer.score(state)
    kept = torch.tensor([0, 2])
    scorer.select(kept)
    assert torch.equal(scorer.score(state.select(kept)), before[kept])


def test_long_and_certain_posteriors_stay_exact():
    """Posteriors of exactly 0 and 1 over thousands of frames, as an overtrained model gives."""
    frames = [1] * 1000 + [0] * 1000 + [1] * 1000 + [2] * 1000
    log_probs = torch.full((1, len(frames), N_TOKENS), float("-inf"))
    log_probs[0, range(len(frames)), frames] = 0.0
    scorer = CTCPrefixScorer(log_probs)
    state = extended(scorer, (1, 1, 2), 1)
    assert float(scorer.score_end(state)) == pytest.approx(0.0, abs=1e-6)
    assert float(scorer.score_end(extended(scorer, (1, 2), 1))) < -900
    scores = scorer.score(extended(scorer, (1, 1), 1))[0, 0]
    assert float(scores[2]) == pytest.approx(0.0, abs=1e-6)
    assert float(scores[1]) < -900


def test_candidates_that_ctc_is_sure_not_to_hear_have_their_own_scores():
    """In float32 their probabilities are 0, but not their logarithms."""
    log_probs = torch.full((1, 50, N_TOKENS), -200.0)
    log_probs[..., 0] = 0.0
    log_probs[..., 2] = -300.0
    scorer = CTCPrefixScorer(log_probs)
    state = extended(scorer, (1,), 1)
    scores = scorer.score(state, torch.tensor([[[1, 2, 3]]]))[0, 0]
    torch.testing.assert_close(scores, scorer.score(state)[0, 0, [1, 2, 3]], rtol=0, atol=1e-3)
    assert -600 < float(scores[1]) < float(scores[0]) < -300
