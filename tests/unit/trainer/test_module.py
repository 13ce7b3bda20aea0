"""One process: what a training does to the weights, compared with plain loops of torch."""

import copy
import logging
from csv import DictReader
from itertools import pairwise

import pytest
import torch
from torch import nn

from espnet3.errors import ConfigError, TrainingError
from tests.helpers.linear_training import SGD, Linear, batches, fit, make

torch.set_num_threads(1)


def weights(module):
    return torch.cat([p.detach().flatten() for p in module.parameters()])


def plain_loop(model, windows, lr=0.1, clip=None):
    """Train as one would write it by hand; each window of batches makes one step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for window in windows:
        optimizer.zero_grad()
        for batch in window:
            loss, _, _ = model(batch["x"], batch["y"])
            (loss / len(window)).backward()
        if clip:
            clip(model.parameters())
        optimizer.step()
    return weights(model)


def test_one_optimizer_trains_as_a_plain_loop_does():
    module, data = make(), batches()
    expected = plain_loop(copy.deepcopy(module.model), [[b] for b in data] * 2)
    trainer = fit(module, data, max_epochs=2)
    assert torch.equal(weights(module), expected)
    assert trainer.global_step == 12
    assert module.last_gradient_norms["optimizer"] > 0


def test_a_window_is_the_mean_of_its_batches_also_the_short_last_one():
    module, data = make(trainer={"accumulate_grad_batches": 4}), batches(6)
    expected = plain_loop(copy.deepcopy(module.model), [data[:4], data[4:]] * 2)
    trainer = fit(module, data, max_epochs=2)
    torch.testing.assert_close(weights(module), expected)
    assert trainer.global_step == 4
    assert not module.has_open_window


def test_a_validation_within_a_window_does_not_drop_its_gradients():
    module, data = make(trainer={"accumulate_grad_batches": 4}), batches(4)
    expected = plain_loop(copy.deepcopy(module.model), [data])
    fit(module, data, batches(1, seed=1), val_check_interval=1)
    torch.testing.assert_close(weights(module), expected)


@pytest.mark.parametrize(
    ("algorithm", "clip"),
    [
        ("norm", lambda p: torch.nn.utils.clip_grad_norm_(p, 0.05)),
        ("value", lambda p: torch.nn.utils.clip_grad_value_(p, 0.05)),
    ],
)
def test_clipping_is_that_of_torch(algorithm, clip):
    block = {"gradient_clip_val": 0.05, "gradient_clip_algorithm": algorithm}
    module, data = make(trainer=block), batches()
    expected = plain_loop(copy.deepcopy(module.model), [[b] for b in data], clip=clip)
    fit(module, data)
    assert torch.equal(weights(module), expected)


def test_clipping_is_after_accumulation():
    block = {"gradient_clip_val": 0.05, "accumulate_grad_batches": 3}
    module, data = make(trainer=block), batches()
    clip = lambda p: torch.nn.utils.clip_grad_norm_(p, 0.05)  # noqa: E731
    expected = plain_loop(copy.deepcopy(module.model), [data[:3], data[3:]], clip=clip)
    fit(module, data)
    torch.testing.assert_close(weights(module), expected)
    assert module.last_gradient_norms["optimizer"] > 0.05  # as it was before


@pytest.mark.parametrize("precision", ["bf16-mixed", "32-true"])
def test_precisions(precision):
    module, data = make(trainer={"gradient_clip_val": 1.0}), batches()
    before = weights(module)
    fit(module, data, precision=precision)
    assert torch.isfinite(weights(module)).all()
    assert not torch.equal(weights(module), before)
    assert weights(module).dtype == torch.float32


def test_bf16_mixed_computes_the_model_in_bf16_and_the_step_in_32():
    seen = []

    class Watch(Linear):
        def forward(self, x, y):
            prediction = self.layer(x)
            seen.append(prediction.dtype)
            return {"loss": (prediction.squeeze(-1) - y).square().mean()}

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            seen.append(torch.is_autocast_enabled("cpu"))
            return super().step(closure)

    module = make(Watch())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim, "SGD", Optimizer)
        fit(module, batches(1), precision="bf16-mixed")
    assert seen == [torch.bfloat16, False]


def scaled(scale):
    """Return the plugin of 16-mixed, for the CPU, whose scaler begins at a scale."""
    from lightning.pytorch.plugins import MixedPrecision

    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))


def test_16_mixed_clips_what_is_unscaled():
    block = {"gradient_clip_val": 0.05}
    module, data = make(trainer=block), batches()
    clip = lambda p: torch.nn.utils.clip_grad_norm_(p, 0.05)  # noqa: E731
    expected = plain_loop(copy.deepcopy(module.model), [[b] for b in data], clip=clip)
    fit(module, data, plugins=scaled(2.0**10))
    torch.testing.assert_close(weights(module), expected, atol=2e-3, rtol=1e-2)
    assert module.last_gradient_norms["optimizer"] < 20


def test_16_mixed_leaves_an_overflow_to_the_scaler(caplog):
    scheduler = {"_target_": "torch.optim.lr_scheduler.ConstantLR", "factor": 0.5}
    module = make(scheduler=scheduler, max_nonfinite_batches=0)
    before = weights(module)
    plugin, data = scaled(2.0**127), batches(1)
    data[0]["y"] += 100
    trainer = fit(module, data, plugins=plugin)
    assert torch.equal(weights(module), before)
    assert plugin.scaler.get_scale() == 2.0**126
    assert module.n_bad_batches == 0
    assert trainer.lr_scheduler_configs[0].scheduler.last_epoch == 0  # no step, no advance
    assert "left out" not in caplog.text


class TestNonFinite:
    def test_a_bad_loss_is_left_out_and_named(self, caplog):
        data = batches()
        data[2]["y"][1] = float("nan")
        module = make()
        good = [[b] for i, b in enumerate(data) if i != 2]
        expected = plain_loop(copy.deepcopy(module.model), good)
        trainer = fit(module, data)
        assert torch.equal(weights(module), expected)
        assert (module.n_bad_batches, trainer.global_step) == (1, 5)
        assert "utt2_0, utt2_1" in caplog.text
        assert "rank 0" in caplog.text
        assert torch.isfinite(trainer.callback_metrics["train/loss"])

    def test_a_window_with_a_bad_batch_is_the_mean_of_the_others(self):
        data = batches(4)
        data[1]["y"][0] = float("inf")
        module = make(trainer={"accumulate_grad_batches": 2})
        expected = plain_loop(copy.deepcopy(module.model), [data[:1], data[2:]])
        fit(module, data)
        torch.testing.assert_close(weights(module), expected)

    def test_a_bad_gradient_is_not_stepped_with(self, caplog):
        class Root(Linear):
            def forward(self, x, y):  # its gradient at zero is infinite, its loss is not
                return {"loss": (self.layer(x).squeeze(-1) - y).mean().square().sqrt()}

        data = batches(3)
        module = make(Root())
        with torch.no_grad():
            target = module.model.layer(data[0]["x"]).squeeze(-1)
        data[0]["y"] = target.clone()
        before = weights(module)
        fit(module, data[:1])
        assert torch.equal(weights(module), before)
        assert module.n_bad_batches == 1
        assert "gradients is nan" in caplog.text
        fit(module, data)
        assert torch.isfinite(weights(module)).all()
        assert not torch.equal(weights(module), before)

    @pytest.mark.parametrize("n_accumulated", [1, 2])
    def test_too_many_in_a_row_end_the_training(self, n_accumulated):
        data = batches(10)
        for batch in data[2:]:
            batch["y"][:] = float("nan")
        module = make(max_nonfinite_batches=3, trainer={"accumulate_grad_batches": n_accumulated})
        with pytest.raises(TrainingError, match=r"gradient_clip_val: 1\.0") as caught:
            fit(module, data)
        assert "4 batches in a row" in str(caught.value)
        assert module.n_bad_batches == 4

    def test_as_many_with_a_good_one_between_do_not(self):
        data = batches(9)
        for i in (0, 1, 3, 4, 6, 7):
            data[i]["y"][:] = float("nan")
        module = make(max_nonfinite_batches=2)
        fit(module, data)
        assert module.n_bad_batches == 6

    def test_the_counts_are_in_the_checkpoint(self, tmp_path):
        data = batches(3)
        data[2]["y"][:] = float("nan")
        trainer = fit(make(), data)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        module = make()
        fit(module, batches(1), ckpt_path=tmp_path / "a.ckpt", max_epochs=2)
        assert module.n_bad_batches == 1


class TestStats:
    def test_valid_is_the_weighted_mean_of_all_batches(self):
        module = make()
        valid = batches(2, size=5, seed=1) + batches(1, size=2, seed=2)
        trainer = fit(module, batches(2), valid)
        with torch.no_grad():
            losses = [(float(module.model(b["x"], b["y"])[0]), len(b["x"])) for b in valid]
        expected = sum(loss * n for loss, n in losses) / 12
        assert float(trainer.callback_metrics["valid/loss"]) == pytest.approx(expected, rel=1e-6)
        assert "valid/error" in trainer.callback_metrics

    def test_train_is_the_mean_since_the_last_log(self, tmp_path):
        from lightning.pytorch.loggers import CSVLogger

        losses = []

        class Watch(Linear):
            def forward(self, x, y):
                output = super().forward(x, y)
                losses.append(output[0].item())
                return output

        csv = CSVLogger(tmp_path)
        fit(make(Watch()), batches(7), log_every_n_steps=3, logger=csv)
        with open(csv.experiment.metrics_file_path, encoding="utf-8") as file:
            logged = [float(row["train/loss"]) for row in DictReader(file)]
        assert logged == pytest.approx([sum(losses[:3]) / 3, sum(losses[3:6]) / 3], rel=1e-6)

    def test_an_epoch_without_a_log_point_is_logged_at_its_end(self):
        trainer = fit(make(), batches(3), log_every_n_steps=50)
        assert trainer.callback_metrics["train/loss"] > 0

    def test_a_hugging_face_model_goes_through_the_same_door(self):
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config(
            n_layer=1, n_head=1, n_embd=8, vocab_size=11, n_positions=16
        )
        model = transformers.GPT2LMHeadModel(config)
        tokens = torch.randint(0, 11, (2, 5))
        data = [{"input_ids": tokens, "labels": tokens}] * 3
        trainer = fit(make(model), data, data[:1])
        metrics = trainer.callback_metrics
        assert metrics["valid/loss"] < metrics["train/loss"] < 5
        assert set(metrics) == {"train/loss", "valid/loss"}  # no logits

    def test_a_hugging_face_model_without_labels(self):
        transformers = pytest.importorskip("transformers")
        config = transformers.GPT2Config(
            n_layer=1, n_head=1, n_embd=8, vocab_size=11, n_positions=16
        )
        with pytest.raises(TrainingError, match="as 'labels'"):
            fit(
                make(transformers.GPT2LMHeadModel(config)),
                [{"input_ids": torch.zeros(1, 3).long()}],
            )


class TestSchedulers:
    def rate(self, trainer):
        return trainer.optimizers[0].param_groups[0]["lr"]

    def test_one_cycle_is_told_how_long_the_training_is(self):
        node = {"_target_": "torch.optim.lr_scheduler.OneCycleLR", "max_lr": 0.1}
        module = make(scheduler=node, trainer={"accumulate_grad_batches": 4})
        trainer = fit(module, batches(6), max_epochs=3)
        scheduler = trainer.lr_scheduler_configs[0].scheduler
        assert scheduler.total_steps == trainer.global_step == 6
        assert scheduler.last_epoch == 6

    def test_by_epoch(self):
        node = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.5}
        trainer = fit(make(scheduler=node, scheduler_interval="epoch"), batches(3), max_epochs=2)
        assert self.rate(trainer) == pytest.approx(0.025)

    def test_by_step(self):
        node = {"_target_": "torch.optim.lr_scheduler.StepLR", "step_size": 1, "gamma": 0.5}
        trainer = fit(make(scheduler=node), batches(3))
        assert self.rate(trainer) == pytest.approx(0.0125)

    @pytest.mark.parametrize("monitor", ["valid/loss", "train/loss"])
    def test_plateau(self, monitor):
        node = {
            "_target_": "torch.optim.lr_scheduler.ReduceLROnPlateau", "patience": 0,
            "threshold": 10.0, "factor": 0.5, "mode": "max",
        }  # fmt: skip
        module = make(scheduler=node, scheduler_monitor=monitor)
        trainer = fit(module, batches(2), batches(2, seed=1), max_epochs=3)
        assert self.rate(trainer) == pytest.approx(0.025)  # the first value is the best


def test_resume_restores_optimizer_and_schedule(tmp_path):
    config = {
        "optimizer": {"_target_": "torch.optim.Adam", "lr": 0.05, "betas": [0.9, 0.98]},
        "scheduler": {"_target_": "espnet3.components.schedulers.WarmupLR", "warmup_steps": 5},
    }
    whole = make(**config)
    fit(whole, batches(), max_epochs=4)
    first = make(**config)
    trainer = fit(first, batches(), max_epochs=2)
    path = tmp_path / "last.ckpt"
    trainer.save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)  # nothing of OmegaConf in it
    assert set(checkpoint["state_dict"]) == {"model.layer.weight", "model.layer.bias"}
    second = make(seed=7, **config)
    fit(second, batches(), max_epochs=4, ckpt_path=path)
    assert torch.equal(weights(second), weights(whole))


class Gan(nn.Module):
    """Notes which part was computed, and with which weights of the other."""

    def __init__(self, lazy=True):
        super().__init__()
        self.generator = nn.Linear(2, 2)
        self.discriminator = nn.Linear(2, 1)
        self.lazy = lazy
        self.calls = []

    def forward(self, x):
        if not self.training:
            return {"loss": self.discriminator(self.generator(x)).mean().square()}
        if self.lazy:
            return {"discriminator": lambda: self.judge(x), "generator": lambda: self.fool(x)}
        fake = self.generator(x)
        score = self.discriminator(fake).mean()
        return {
            "discriminator": {"loss": self.discriminator(x).mean().square() + score},
            "generator": {"loss": -score},
        }

    def judge(self, x):
        self.calls.append(("discriminator", self.state()))
        fake = self.generator(x)
        assert not fake.requires_grad
        loss = self.discriminator(x).square().mean() + self.discriminator(fake).mean()
        return {"loss": loss, "real": 1.0}

    def fool(self, x):
        self.calls.append(("generator", self.state()))
        assert not self.discriminator.weight.requires_grad
        return -self.discriminator(self.generator(x)).mean(), {}, None

    def state(self):
        return {k: v.detach().clone() for k, v in self.state_dict().items()}


def gan_config(**changes):
    discriminator = {"optimizer": SGD, "params": "discriminator"}
    generator = {"optimizer": SGD, "params": ["generator"], **changes}
    return {"optimizers": {"discriminator": discriminator, "generator": generator}}


def points(n):
    generator = torch.Generator().manual_seed(3)
    return [{"x": torch.randn(4, 2, generator=generator)} for _ in range(n)]


class TestSeveralOptimizers:
    def changed(self, before, after):
        return {k.partition(".")[0] for k in before if not torch.equal(before[k], after[k])}

    def test_they_step_in_the_order_of_the_config(self):
        module = make(Gan(), **gan_config())
        trainer = fit(module, points(3))
        calls = module.model.calls
        assert [name for name, _ in calls] == ["discriminator", "generator"] * 3
        states = [state for _, state in calls] + [module.model.state()]
        changes = [self.changed(a, b) for a, b in pairwise(states)]
        # When the generator is computed, the discriminator has just stepped, and nothing else.
        assert changes == [{"discriminator"}, {"generator"}] * 3
        assert trainer.global_step == 3
        assert list(module.last_gradient_norms) == ["discriminator", "generator"]

    def test_another_order_in_the_config(self):
        config = gan_config()
        swapped = dict(reversed(config["optimizers"].items()))
        module = make(Gan(), optimizers=swapped)
        fit(module, points(2))
        assert [name for name, _ in module.model.calls] == ["generator", "discriminator"] * 2

    def test_frequency(self):
        module = make(Gan(), **gan_config(step_every_n_iters=2))
        fit(module, points(3), max_epochs=2)
        names = [name[0] for name, _ in module.model.calls]
        # Iterations 2, 4, 6 of all epochs together.
        assert "".join(names) == "d" + "dg" + "d" + "dg" + "d" + "dg"

    def test_accumulation_of_one_of_them(self):
        module = make(Gan(), **gan_config(accum_grad_steps=2))
        start = module.model.state()
        fit(module, points(3))
        states = [state for name, state in module.model.calls if name == "generator"]
        states = [start, *states, module.model.state()]
        changes = ["generator" in self.changed(a, b) for a, b in pairwise(states)]
        assert changes == [False, False, True, True]  # after the second and, as the last, the third

    def test_weights_are_those_of_a_plain_loop(self):
        module = make(Gan(), **gan_config(gradient_clip_val=0.01))
        model, data = copy.deepcopy(module.model), points(3)
        d = torch.optim.SGD(model.discriminator.parameters(), lr=0.1)
        g = torch.optim.SGD(model.generator.parameters(), lr=0.1)
        for batch in data:
            x = batch["x"]
            d.zero_grad()
            fake = model.generator(x).detach()
            loss = model.discriminator(x).square().mean() + model.discriminator(fake).mean()
            loss.backward()
            d.step()
            g.zero_grad()
            (-model.discriminator(model.generator(x)).mean()).backward()
            torch.nn.utils.clip_grad_norm_(model.generator.parameters(), 0.01)
            g.step()
        fit(module, data)
        torch.testing.assert_close(weights(module), weights(model))

    def test_outputs_computed_at_once_share_a_graph(self):
        module = make(Gan(lazy=False), **gan_config())
        model, data = copy.deepcopy(module.model), points(1)
        steps = model(**data[0])
        d_loss, g_loss = steps["discriminator"]["loss"], steps["generator"]["loss"]
        d_parameters = list(model.discriminator.parameters())
        g_parameters = list(model.generator.parameters())
        d_gradients = torch.autograd.grad(d_loss, d_parameters, retain_graph=True)
        g_gradients = torch.autograd.grad(g_loss, g_parameters)
        with torch.no_grad():
            for p, gradient in zip(
                [*d_parameters, *g_parameters], [*d_gradients, *g_gradients], strict=True
            ):
                p -= 0.1 * gradient
        fit(module, data)
        torch.testing.assert_close(weights(module), weights(model))

    def test_metrics_are_named_after_them(self):
        trainer = fit(make(Gan(), **gan_config()), points(2), points(1))
        assert set(trainer.callback_metrics) == {
            "train/discriminator/loss", "train/discriminator/real", "train/generator/loss",
            "valid/loss",
        }  # fmt: skip

    def test_max_steps_counts_once_for_all(self):
        module = make(Gan(), **gan_config())
        fit(module, points(10), max_epochs=-1, max_steps=4)
        assert len(module.model.calls) == 8

    def test_resume(self, tmp_path):
        config = gan_config(step_every_n_iters=2)
        config["optimizers"]["generator"]["optimizer"] = {"_target_": "torch.optim.Adam"}
        whole = make(Gan(), **config)
        fit(whole, points(3), max_epochs=4)
        trainer = fit(make(Gan(), **config), points(3), max_epochs=1)
        trainer.save_checkpoint(tmp_path / "a.ckpt")
        second = make(Gan(), seed=5, **config)
        fit(second, points(3), max_epochs=4, ckpt_path=tmp_path / "a.ckpt")
        assert torch.equal(weights(second), weights(whole))


def test_a_parameter_without_optimizer_is_an_error_before_training():
    config = gan_config()
    config["optimizers"]["generator"]["params"] = "generator.weight"
    with pytest.raises(ConfigError, match=r"params: \[discriminator, generator\]"):
        make(Gan(), **config)


def test_a_loss_without_graph():
    class Detached(Linear):
        def forward(self, x, y):
            return super().forward(x, y)[0].detach(), {}, 1

    with pytest.raises(TrainingError, match=r"without \.detach\(\)"):
        fit(make(Detached()), batches(1))


def test_a_batch_that_does_not_fit_is_an_error_before_the_first_step():
    data = [{"x": torch.zeros(1, 3), "target": torch.zeros(1)}]
    with pytest.raises(ConfigError, match="collate_fn"):
        fit(make(), data)


def test_importing_does_not_set_up_logging():
    assert not logging.getLogger("espnet3.trainer").handlers
