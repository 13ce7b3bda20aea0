import pytest

from espnet3.errors import TrainingError
from espnet3.trainer.optimization.model_calls import compute, is_lazy, steps_of

NAMES = ["generator", "discriminator"]


def test_one_optimizer_needs_no_name():
    assert steps_of({"loss": 1}, ["optimizer"], "Model") == {"optimizer": {"loss": 1}}
    assert steps_of({"optimizer": 1}, ["optimizer"], "Model") == {"optimizer": 1}


def test_steps_are_taken_by_name():
    steps = {"generator": None, "discriminator": 2}
    assert steps_of(steps, NAMES, "Gan") == steps


def test_a_function_is_computed_when_asked_for():
    assert is_lazy(lambda: 3)
    assert compute(lambda: 3) == 3
    assert not is_lazy({"loss": 1})
    assert compute({"loss": 1}) == {"loss": 1}


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"loss": 1}, ["the keys loss", '"generator": lambda: self.generator_step(batch)']),
        ((1, {}, 1), ["one tuple", "Return a step for each"]),
        ({"generator": 1}, ["no step for discriminator", "None, on all ranks"]),
        (
            {"generator": 1, "discriminator": 1, "discriminatorr": 1},
            ["'discriminatorr'", "Did you mean 'discriminator'?"],
        ),
    ],
)
def test_steps_that_do_not_fit_the_optimizers(output, words):
    with pytest.raises(TrainingError) as caught:
        steps_of(output, NAMES, "Gan")
    assert all(word in str(caught.value) for word in words), str(caught.value)
