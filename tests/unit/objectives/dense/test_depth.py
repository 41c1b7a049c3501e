# SPDX-License-Identifier: Apache-2.0
"""What learning depth asks of a model, of data and of the start of a run."""

from typing import Any

import jax
import pytest

from tests.refusals import refused_by
from tests.unit.evals.dense.test_depth import Steps
from vit_jax import models
from vit_jax.data import DataConfig, MixConfig
from vit_jax.data.targets import TargetKind
from vit_jax.errors import UserError
from vit_jax.models.dense.dpt import DptConfig
from vit_jax.objectives import Depth, DepthConfig, DepthHead, Objective, create

SIZES: dict[str, Any] = {"image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
MODEL = models.variant("vit_mu8", num_classes=0, depth=4, mlp_dim=32, class_token=True, **SIZES)
CHECK = "objectives.dense.depth.DepthConfig.check"


def test_settings_that_exclude_each_other() -> None:
    for cfg, field in (
        (DepthConfig(head=DepthHead.DPT, bins=8), "bins=8 has no effect without"),
        (DepthConfig(dpt=DptConfig(dim=8)), "dpt="),
        (DepthConfig(min_depth=10.0), "min_depth=10.0 must be below max_depth=10.0"),
    ):
        with pytest.raises(UserError, match=field):
            cfg.check(MODEL, DataConfig())
    dropped = models.with_fields(MODEL, {"dropout_rate": 0.1})
    with refused_by("objectives.dense.pixels.PixelHeadConfig.check_frozen", "model.dropout_rate"):
        DepthConfig(frozen=True).check(dropped, DataConfig())
    with refused_by("data.checks.check_dense_data", "data.mix.mixup_alpha"):
        DepthConfig().check(MODEL, DataConfig(mix=MixConfig(mixup_alpha=0.2)))
    with refused_by("models.dense.dpt.check", "objective.dpt.taps"):
        DepthConfig(head=DepthHead.DPT).check(MODEL, DataConfig())  # 12 layers by default


def test_a_frozen_encoder_comes_from_somewhere() -> None:
    with refused_by("objectives.dense.pixels.PixelHeadConfig.check_start", "objective.frozen"):
        DepthConfig(frozen=True).check_start("")
    DepthConfig(frozen=True).check_start("hf:facebook/dinov2-small")
    assert DepthConfig(frozen=True).locked == r"^(?!depth_head(?:/|$))"
    assert not DepthConfig().locked


def test_flops_are_of_what_is_trained() -> None:
    head = 2 * 16 * 16 * 256  # 16 patches of width 16 to 256 bins, a multiply-add counted as two
    counts = {}
    for frozen in (False, True):
        objective = create(DepthConfig(frozen=frozen), MODEL, DataConfig())
        params, state = jax.eval_shape(objective.init, jax.random.key(0))
        counts[frozen] = objective.flops({"params": params, **state})
        encoder = Objective.flops(objective, {"params": params, **state}) // 3
    assert counts == {False: 3 * (encoder + head), True: encoder + 3 * head}


def test_data_has_depths() -> None:
    objective = create(DepthConfig(), MODEL, DataConfig())
    assert isinstance(objective, Depth)
    assert objective.fields == ("depth",)
    assert set(objective.predictors) == {"depth", "features"}
    source = Steps([(8, 8)])
    objective.open(source, 0, 0, {})
    source.target_kind = TargetKind.PIXELS
    with refused_by("objectives.dense.depth.Depth.open", "data.name"):
        objective.open(source, 0, 0, {})
    assert "no pixel has a known depth" in objective.alarm({"loss": 0.0, "known": 0.0})
    assert not objective.alarm({"loss": 0.1, "known": 0.5})
