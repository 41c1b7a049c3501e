# SPDX-License-Identifier: Apache-2.0
"""No setting is silently without effect."""

import dataclasses

import pytest

from vit_jax.errors import UserError
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule

BF16 = MomentDtype.BFLOAT16


def test_defaults_are_valid_for_every_optimizer():
    for name in Optimizer:
        OptimConfig(name=name).check()


@pytest.mark.parametrize(
    "field, value, settings",
    [
        ("momentum", 0.5, {"name": Optimizer.ADAMW}),
        ("nesterov", True, {"name": Optimizer.LION}),
        ("eps", 1e-6, {"name": Optimizer.ADAFACTOR}),
        ("eps", 1e-6, {"name": Optimizer.LION}),
        ("beta1", 0.8, {"name": Optimizer.SGD}),
        ("beta1", 0.8, {"name": Optimizer.ADAFACTOR}),
        ("nesterov", True, {"name": Optimizer.SGD, "momentum": 0.0}),
        ("mu_dtype", BF16, {"name": Optimizer.SGD, "momentum": 0.0}),
        ("coupled_decay", True, {"name": Optimizer.ADAMW, "weight_decay": 0.1}),
        ("coupled_decay", True, {"name": Optimizer.SGD}),
        ("coupled_decay", True, {"name": Optimizer.SGD, "weight_decay": 0.1, "momentum": 0.0}),
        ("muon_debias", False, {"name": Optimizer.MUON}),
        ("muon_debias", False, {"name": Optimizer.SGD, "nesterov": True}),
        ("mu_dtype", BF16, {"name": Optimizer.ADAFACTOR, "momentum": 0.0}),
        ("nesterov", True, {"name": Optimizer.ADAMUON}),
        ("adam_nesterov", True, {"name": Optimizer.NADAMUON}),
        ("muon_scale", "jordan", {"name": Optimizer.ADAMUON}),
        ("muon_coefficients", "quintic", {"name": Optimizer.ADAMW}),
        ("muon_coefficients", "polar", {"name": Optimizer.MUON}),
        ("muon_steps", 0, {"name": Optimizer.NORMUON}),
        ("muon_safety", 0.9, {"name": Optimizer.NORMUON}),
        ("cooldown_shape", "sqrt", {"schedule": Schedule.CONSTANT}),
        ("cooldown_shape", "sqrt", {"cooldown": "5%"}),
        ("branch", "ckpt:runs/trunk@80", {}),
        ("branch", "ckpt:runs/trunk@best", {"schedule": Schedule.CONSTANT}),
        ("branch", "runs/trunk@80", {"schedule": Schedule.CONSTANT}),
        ("cooldown", "5%", {"schedule": Schedule.CONSTANT, "branch": "ckpt:runs/trunk@80"}),
        ("warmup_lr", 1e-6, {}),
        ("min_lr", 1e-6, {"schedule": Schedule.CONSTANT}),
        ("rsqrt_timescale", "5 steps", {}),
        ("milestones", ("5%",), {}),
        ("decay_factor", 0.2, {}),
        ("decay_factor", 1.0, {"schedule": Schedule.STEP}),
        ("schedule_every", "1 epoch", {"schedule": Schedule.CONSTANT}),
        ("schedule_lag", True, {"schedule": Schedule.CONSTANT}),
        ("warmup_overlap", True, {}),
        ("warmup_overlap", True, {"schedule": Schedule.CONSTANT, "warmup": "5%"}),
        ("warmup_overlap", True, {"schedule": Schedule.STEP, "warmup": "5%"}),
        ("weight_decay", 0.1, {"decay": ""}),
        ("weight_decay_end", 0.1, {"decay": ""}),
        ("weight_decay_end", -0.1, {"weight_decay": 0.1}),
        ("hold", "head", {}),
        ("hold_for", "1 epoch", {}),
        ("lr", 0.0, {}),
        ("min_lr", 1.0, {}),
        ("beta2", 1.0, {}),
        ("layer_decay", 0.0, {}),
        ("clip_norm", -1.0, {}),
        ("lr_multipliers", (("head", 0.0),), {}),
        ("lr_multipliers", ("head", 2.0), {}),
        ("name", "adam", {}),
        ("mu_dtype", "float16", {}),
    ],
)
def test_refused_by_name(field, value, settings):
    OptimConfig(**settings).check()
    # The generated __init__ would have the type checked; a config file may assign anything.
    cfg = OptimConfig(**settings)
    setattr(cfg, field, value)
    with pytest.raises(UserError) as error:
        cfg.check()
    assert error.value.field == f"optim.{field}"
    assert "\n" not in str(error.value)


def test_settings_that_act_are_taken():
    OptimConfig(schedule_every="1 epoch", schedule_lag=True).check()
    for varied in ("warmup", "cooldown"):
        cfg = OptimConfig(schedule=Schedule.CONSTANT, schedule_every="1 epoch", **{varied: "5%"})
        cfg.check()
    OptimConfig(clip_norm=0.0, beta1=0.0, beta2=0.0, weight_decay=0.0).check()  # the least


def test_every_field_is_documented():
    documented = OptimConfig.__doc__
    for field in dataclasses.fields(OptimConfig):
        assert field.name in ("name", "schedule") or f"{field.name}:" in documented, field.name


def test_plain_strings_from_a_config_file_do():
    cfg = OptimConfig()
    cfg.name, cfg.schedule, cfg.mu_dtype = "sgd", "rsqrt", "bfloat16"
    cfg.rsqrt_timescale = "100 steps"
    cfg.check()
