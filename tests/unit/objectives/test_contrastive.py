# SPDX-License-Identifier: Apache-2.0
"""Settings of two towers that do not go together are refused in one line, without data."""

import math
import re
from collections.abc import Callable

import jax.numpy as jnp
import pytest

from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import models, objectives
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.models import two_towers
from vit_jax.models.text import TowerHead
from vit_jax.objectives import Lock
from vit_jax.recipes import image_text


def _accumulates(cfg: Config) -> None:
    cfg.accum_steps = 2


def _locks(cfg: Config) -> None:
    cfg.objective.lock = Lock.IMAGE


def _mixes(cfg: Config) -> None:
    cfg.data.mix.mixup_alpha = 0.2


def _has_classes(cfg: Config) -> None:
    cfg.model.num_classes = 3


def _meets_nowhere(cfg: Config) -> None:
    cfg.objective.text.projection, cfg.objective.dim = TowerHead.NONE, 32


@pytest.mark.parametrize(
    "change, code, field",
    [
        (_accumulates, "config.checks.steps_divide_the_batch", "accum_steps"),
        (_locks, "objectives.contrastive.ContrastiveConfig.check_start", "objective.lock"),
        (_mixes, "objectives.contrastive.ContrastiveConfig.check", "data.mix"),
        (_has_classes, "config.checks.head_is_trained", ""),
        (_meets_nowhere, "models.two_towers.validate", "objective.text.projection"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    change: Callable[[Config], None], code: str, field: str
) -> None:
    cfg = image_text.small()
    config_lib.check(cfg)
    change(cfg)
    with refused_by(code, field) as caught:
        config_lib.check(cfg)
    assert len(str(caught.value).splitlines()) == 1


def test_a_lock_names_one_tower_and_nothing_else() -> None:
    cfg = image_text.small()
    params = two_towers.abstract(objectives.contrastive.pair(cfg.objective, cfg.model))["params"]
    locked = {}
    for lock in Lock:
        cfg.objective.lock = lock
        pattern = cfg.objective.locked
        names = [f"{name}/kernel" if name != "logit_scale" else name for name in params]
        locked[lock] = {n.split("/")[0] for n in names if pattern and re.search(pattern, n)}
    beside = {"text", "image_head", "logit_scale"}
    assert locked == {"none": set(), "text": {"text"}, "image": params.keys() - beside}


def test_the_scale_is_bounded_after_the_step() -> None:
    cfg = image_text.small()
    objective = objectives.create(cfg.objective, cfg.model, DataConfig())
    params = {"logit_scale": jnp.float32(math.log(120.0)), "text": jnp.zeros(1)}
    assert math.exp(objective.bounded(params)["logit_scale"]) == pytest.approx(100.0)
    cfg.objective.max_scale = 0.0
    free = objectives.create(cfg.objective, cfg.model, DataConfig())
    assert math.exp(free.bounded(params)["logit_scale"]) == pytest.approx(120.0)


def test_a_locked_tower_has_no_backward_pass() -> None:
    model, cfg = image_text.two_towers("openclip_s32", image_size=(32, 32))
    shapes = two_towers.abstract(objectives.contrastive.pair(cfg, models.looped(model)))
    counts = {}
    for cfg.lock in Lock:
        objective = objectives.create(cfg, models.looped(model), DataConfig())
        counts[str(cfg.lock)] = objective.flops(shapes)
    text = objective.text_flops(shapes)
    image = counts["none"] // 3 - text
    assert counts == {
        "none": 3 * (image + text),
        "image": image + 3 * text,
        "text": 3 * image + text,
    }
