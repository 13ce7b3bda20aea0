import pytest
import torch
from torch import nn

from espnet3.trainer.optimization import optimizer_steps
from espnet3.trainer.optimization.optimizer_steps import (
    average_over_ranks,
    clip_gradients,
    scale_gradients,
    total_norm,
)


def parameters(*values):
    made = [nn.Parameter(torch.zeros(len(v) if v else 1)) for v in values]
    for parameter, value in zip(made, values, strict=True):
        parameter.grad = torch.tensor(value) if value else None
    return made


def test_norm_is_of_all_together():
    assert total_norm(parameters([3.0], None, [0.0, 4.0])).item() == 5.0
    assert total_norm(parameters(None)).item() == 0.0


def test_scaling_leaves_those_without_gradient():
    made = parameters([3.0], None)
    scale_gradients(made, 2.0)
    assert made[0].grad.item() == 6.0
    assert made[1].grad is None


@pytest.mark.parametrize(("algorithm", "expected"), [("norm", [0.6, 0.8]), ("value", [1.0, 1.0])])
def test_clipping(algorithm, expected):
    made = parameters([3.0], [4.0])
    norm = total_norm(made)
    clip_gradients(made, 1.0, algorithm, norm, norm.item())
    assert [p.grad.item() for p in made] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("norm", [0.5, 0.98, 0.985, 0.99, 0.991, 0.999999, 1.0, 1.001, 2.0])
def test_gradients_are_left_alone_only_where_torch_multiplies_them_by_one(norm, kind):
    made, plain = (parameters([3.0, 4.0], [12.0]) for _ in range(2))
    for parameter in (*made, *plain):
        parameter.data = parameter.data.to(kind)
        parameter.grad = (parameter.grad * (norm / 13)).to(kind)
    whole = total_norm(made)
    clip_gradients(made, 1.0, "norm", whole, whole.item())
    torch.nn.utils.clip_grad_norm_(plain, 1.0)
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(made, plain, strict=True))


@pytest.fixture
def one_rank(tmp_path):
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_averaging_puts_each_gradient_back(monkeypatch):
    monkeypatch.setattr(optimizer_steps, "_BUCKET_BYTES", 12)
    made = parameters([1.0, 2.0], None, [3.0, 4.0, 5.0], [6.0])
    made.append(nn.Parameter(torch.zeros(2, dtype=torch.float64)))
    made[-1].grad = torch.tensor([7.0, 8.0], dtype=torch.float64)
    average_over_ranks(made)
    assert [p.grad.tolist() if p.grad is not None else None for p in made] == [
        [1.0, 2.0], None, [3.0, 4.0, 5.0], [6.0], [7.0, 8.0]
    ]  # fmt: skip
