# SPDX-License-Identifier: Apache-2.0
"""Groups of a config that do not go together are refused in one line."""

from typing import Any

import pytest

from vit_jax import models
from vit_jax.config import checks
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, LossEval
from vit_jax.models import ModelConfig
from vit_jax.models.lora import LoraConfig
from vit_jax.objectives import DinoConfig, MaeConfig
from vit_jax.weights.config import InitConfig


def config(**fields: Any) -> Config:
    given = {"data": DataConfig(name="digits", batch_size=12), **fields}
    return Config(**{"model": models.variant("vit_mu16", num_classes=10), **given})


@pytest.mark.parametrize(
    "rule, fields, told",
    [
        (
            checks.average_is_kept,
            {},
            "DinoConfig learns from the moving average of its parameters; set ema_decay, such as",
        ),
        (
            checks.steps_divide_the_batch,
            {"accum_steps": 2},
            "accum_steps=2 would cut the batch, whose examples DinoConfig compares; set 1, and",
        ),
        (
            checks.evals_fit,
            {"evals": {"val": LossEval()}},
            "evals.val is a LossEval, and DinoConfig has no loss of an image by itself; choose KNN",
        ),
        (
            checks.evals_fit,
            {"evals": {"A": ClassifyEval()}},
            "evals.A: use a-z, 0-9 and _, and neither 'train' nor 'perf'$",
        ),
    ],
)
def test_what_an_objective_cannot_have(rule: Any, fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=f"^{told}"):
        rule(config(objective=DinoConfig(), **fields))


def test_a_batch_that_devices_cannot_split_is_told_the_nearest() -> None:
    checks.check_batch(config(), 4)
    told = r"^data\.batch_size=12 cannot be split over 8 devices x accum_steps=1; the nearest that"
    with pytest.raises(UserError, match=rf"{told} can is 16, and this one can over 6$"):
        checks.check_batch(config(), 8)


def test_a_tensor_axis_divides_the_heads_of_every_stage() -> None:
    swin: ModelConfig = models.variant("swin_t", num_heads=(2, 3, 4, 6))
    cfg = config(model=swin)
    checks.check_batch(cfg, 1)
    cfg.mesh.tensor = 2
    told = r"^mesh\.tensor=2 must divide model\.num_heads=\(2, 3, 4, 6\)$"
    with pytest.raises(UserError, match=told):
        checks.check_batch(cfg, 1)


def test_a_head_has_the_classes_of_the_data() -> None:
    checks.check_classes(config(), 10)
    told = r"^model\.num_classes=10, but digits has 3 classes; set model\.num_classes=3$"
    with pytest.raises(UserError, match=told):
        checks.check_classes(config(), 3)


def test_a_head_that_nothing_trains_is_refused() -> None:
    told = r"^DinoConfig trains no head; set model\.num_classes=0, not 10$"
    with pytest.raises(UserError, match=told):
        checks.head_is_trained(config(objective=DinoConfig()))


def test_patches_of_several_sizes_are_for_objectives_that_take_them() -> None:
    cfg = config(model=models.variant("flexivit_s", drawn_patches=(48, 30)), objective=MaeConfig())
    with pytest.raises(UserError, match=r"^MaeConfig has patches of one size; set model\.drawn_"):
        checks.patches_fit(cfg)


def test_low_rank_changes_need_a_base_and_labels() -> None:
    lora, weights = LoraConfig(pattern="qkv"), InitConfig(weights="npz:x")
    checks.lora_fits(config(lora=lora, init=weights))
    cases = (
        ({}, "frozen weights to change; set init.weights"),
        ({"mup_base_dim": 96}, "a rule for model.mup_base_dim; set 0"),
        ({"objective": MaeConfig()}, "classes to learn by MaeConfig"),
    )
    for fields, told in cases:
        cfg = config(lora=lora)
        for name, value in fields.items():
            setattr(cfg.model if name == "mup_base_dim" else cfg, name, value)
        cfg.init = weights if fields else InitConfig()
        with pytest.raises(UserError, match=f"^lora.pattern='qkv' lacks {told}$"):
            checks.lora_fits(cfg)
