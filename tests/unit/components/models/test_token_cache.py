"""Keys and values of hypotheses that share their beginnings."""

import pytest
import torch

from espnet3.components.models.token_transformer import Past, TransformerState


@pytest.fixture(params=[True, False], ids=["with-gradients", "without"], autouse=True)
def _gradients(request):
    with torch.set_grad_enabled(request.param):
        yield


def started(*values: float) -> TransformerState:
    return TransformerState.of([torch.tensor(values)[:, None, None].expand(-1, 1, 3).clone()])


def added(state: TransformerState, *values: float) -> TransformerState:
    """Return the state with a token in each row, as a layer adds it."""
    state = state.with_room()
    n_groups, n_rows, _ = state.sees.shape
    new = torch.tensor(values).view(n_groups, n_rows, 1).expand(-1, -1, 3)
    past = Past(state.layers[0], state.n, state.sees[..., : state.n + n_rows])
    return state.grown([past.add(new)])


def rows(state: TransformerState) -> list[list[float]]:
    """Return the tokens that each row sees."""
    found = []
    for values, sees in zip(state.layers[0], state.sees, strict=True):
        taken = values[: state.n, 0]
        found += [taken[one[: state.n]].tolist() for one in sees]
    return found


def test_many_tokens_are_kept_in_order():
    state = started(0.0, 100.0)
    for place in range(1, 50):
        state = added(state, float(place), 100.0 + place)
    assert rows(state) == [[float(i) for i in range(50)], [float(i + 100) for i in range(50)]]
    assert state.n_tokens == 50


def test_two_continuations_of_one_state_do_not_disturb_each_other():
    start = added(started(0.0), 1.0)
    one, other = added(start, 2.0), added(start, 7.0)
    one, other = added(one, 3.0), added(other, 8.0)
    assert rows(start) == [[0, 1]]
    assert rows(one) == [[0, 1, 2, 3]]
    assert rows(other) == [[0, 1, 7, 8]]


@pytest.mark.parametrize(
    ("indices", "wanted"),
    [
        ([1, 1, 0, 0], [[10, 11], [10, 11], [0, 1], [0, 1]]),
        ([1, 0, 0], [[10, 11], [0, 1], [0, 1]]),
        ([1], [[10, 11]]),
    ],
    ids=str,
)
def test_selected_rows_go_on_alone(indices, wanted):
    start = added(started(0.0, 10.0), 1.0, 11.0)
    chosen = start.select(torch.tensor(indices))
    new = [20.0 + i for i in range(len(indices))]
    longer = added(chosen, *new)
    added(start, 9.0, 9.0)
    assert rows(longer) == [[*old, one] for old, one in zip(wanted, new, strict=True)]
    assert rows(chosen) == wanted


def test_a_beam_of_many_steps_sees_what_copies_of_its_rows_would_hold():
    generator = torch.Generator().manual_seed(0)
    state = started(0.0, 1.0).select(torch.tensor([0, 0, 0, 1, 1, 1]))
    copies = [[float(i // 3)] for i in range(6)]
    for step in range(1, 40):
        parents = torch.randint(0, 3, (2, 3), generator=generator) + torch.tensor([[0], [3]])
        state = state.select(parents.flatten())
        copies = [copies[i] for i in parents.flatten().tolist()]
        new = [float(100 * step + i) for i in range(6)]
        state = added(state, *new)
        copies = [[*old, one] for old, one in zip(copies, new, strict=True)]
        assert rows(state) == copies


def test_hypotheses_of_an_utterance_keep_a_common_beginning_once():
    if torch.is_grad_enabled():
        return
    state = started(0.0).select(torch.zeros(10, dtype=torch.long))
    for step in range(200):
        state = added(state, *[float(step)] * 10)
        state = state.select(torch.zeros(10, dtype=torch.long))
    assert state.layers[0].shape[1] < 200 + 200  # of 2,000 tokens in all rows
    buffer = state.layers[0]
    assert state.select(torch.arange(10)).layers[0] is buffer
