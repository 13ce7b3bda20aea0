"""Hooks are called with what their signature accepts, in all the forms that users write."""

import pytest

from espnet3.errors import ProviderError
from espnet3.parallel.base_runner import BaseRunner
from espnet3.parallel.tasks import RunnerHooks, bind, overridden

ENV = {"dataset": "D", "model": "M"}


@pytest.mark.parametrize(
    ("forward", "expected"),
    [
        (lambda idx: (idx,), (7,)),
        (lambda idx, dataset: (idx, dataset), (7, "D")),
        (lambda idx, *, dataset, model, beam_size=5: (dataset, model, beam_size), ("D", "M", 5)),
        (lambda idx, dataset, model, **env: (dataset, model, env), ("D", "M", {})),
        (lambda idx, **env: env, ENV),
        (lambda i, model: (i, model), (7, "M")),
        (lambda idx, /, model: (idx, model), (7, "M")),
        (lambda *args, **env: (args, env), ((7,), ENV)),
        (lambda idx, lm=None: (idx, lm), (7, None)),
    ],
)
def test_forward_gets_the_index_and_what_it_names(forward, expected):
    assert bind(forward, ["idx"], ENV)(7) == expected


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (lambda writers, result: (writers, result), ("W", "R")),
        (lambda writers, result, state: (writers, result, state), ("W", "R", "S")),
        (lambda writers, result, state, **env: (state, env), ("S", ENV)),
        (lambda w, r, model: (w, r, model), ("W", "R", "M")),
        (lambda writers, result, *, dataset: (result, dataset), ("R", "D")),
    ],
)
def test_write_record_may_take_fewer_arguments(write, expected):
    assert bind(write, ["writers", "result", "state"], ENV)("W", "R", "S") == expected


def test_a_parameter_that_nobody_gives_is_told_with_the_closest_name():
    with pytest.raises(ProviderError, match=r"needs 'modle'.*Did you mean 'model'\? .*modle=None"):
        bind(lambda idx, modle: 0, ["idx"], ENV)


def test_a_builtin_that_does_not_tell_its_signature_is_called_as_it_is():
    assert bind(max, ["idx"], {})([1, 3]) == 3


class Plain(BaseRunner):
    @staticmethod
    def forward(idx):
        return idx


class Method(Plain):
    def write_record(self, writers, result):
        pass


class ClassMethod(Plain):
    @classmethod
    def forward(cls, idx):
        return idx


def test_hooks_are_taken_from_the_class():
    assert RunnerHooks.of(Plain).forward(3) == 3
    assert overridden(Plain, BaseRunner, ["forward", "merge"]) == ["forward"]


@pytest.mark.parametrize(("runner", "name"), [(Method, "write_record"), (ClassMethod, "forward")])
def test_a_hook_that_is_not_static_is_told(runner, name):
    with pytest.raises(ProviderError, match=f"write @staticmethod above 'def {name}'"):
        RunnerHooks.of(runner)
