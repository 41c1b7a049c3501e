# SPDX-License-Identifier: Apache-2.0
"""Which crops self-distillation asks for, its schedule of temperature, and what it refuses."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from tests.refusals import EFFECT, Told, refused_as, refused_by
from vit_jax import config as config_lib
from vit_jax import models, objectives
from vit_jax.config.tree import Config
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.evals import KNNEval, LossEval
from vit_jax.objectives import Dino, DinoConfig, HeadConfig
from vit_jax.settings.durations import Clock

LARGE = TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.4, 1.0))


def _model(**fields: Any) -> Any:
    small = {"num_classes": 0, "image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
    return models.variant("vit_mu8", **{**small, "dynamic_image_size": True, **fields})


def _objective(clock: Clock | None = None, **fields: Any) -> Dino:
    data = DataConfig(transform=LARGE)
    given = {"small_crops": 3, "small_size": (8, 8), **fields}
    found = objectives.create(DinoConfig(**given), _model(), data, clock)
    assert isinstance(found, Dino)
    return found


def _config(**fields: Any) -> Config:
    objective = DinoConfig(small_crops=2, small_size=(8, 8))
    given = {"model": _model(), "objective": objective, "ema_decay": 0.9, **fields}
    return Config(data=DataConfig(name="digits", transform=LARGE), **given)


def test_views() -> None:
    views = _objective(second=dataclasses.replace(LARGE, flip=True)).views
    assert list(views) == ["global_1", "global_2", "local"]
    assert [view.shape for view in views.values()] == [(16, 16, 3), (16, 16, 3), (3, 8, 8, 3)]
    assert [view.transform.flip for view in views.values()] == [False, True, False]
    assert list(_objective(small_crops=0).views) == ["global_1", "global_2"]


def test_the_teachers_temperature_rises_linearly() -> None:
    clock = Clock(batch_size=4, num_examples=400, total_steps=1000)
    objective = _objective(clock, temperature_warmup="2 epochs")
    found = [float(objective._temperature(jnp.asarray(step))) for step in (0, 50, 200, 900)]
    assert found == pytest.approx([0.04, 0.0475, 0.07, 0.07])
    assert float(_objective(clock, temperature_warmup="")._temperature(jnp.asarray(0))) == (
        pytest.approx(0.07)
    )


def test_own_parameters_depend_on_the_loss() -> None:
    assert _objective().own_parameters == ("dino_head",)
    assert _objective(patch_weight=1.0).own_parameters == ("dino_head", "ibot_head", "mask_token")
    shared = _objective(patch_weight=1.0, shared_head=True)
    assert shared.own_parameters == ("dino_head", "mask_token")
    assert shared.init_state(jax.random.key(0)).keys() == {"dino_head", "ibot_head"}


@pytest.mark.parametrize(
    ("fields", "model", "named"),
    [
        ({}, {"dynamic_image_size": False}, "set model.dynamic_image_size=True"),
        ({"small_size": (6, 6)}, {}, ("models.base.grid", "model.patch")),
        ({"temperature_warmup": "soon"}, {}, ("settings.durations.parse", "")),
        (
            {"patch_weight": 1.0, "hidden_share": (0.5, 0.1)},
            {},
            r"objective\.hidden_share=\(0\.5, 0\.1\)",
        ),
        (
            {"patch_weight": 1.0, "hidden_share": (0.0, 0.06)},  # of 16 patches
            {},
            r"objective\.hidden_share=\(0\.0, 0\.06\)",
        ),
        ({"hidden_images": 0.3}, {}, (EFFECT, "objective.hidden_images")),
        ({"shared_head": True}, {}, (EFFECT, "objective.shared_head")),
        (
            {"temperature_warmup": "", "first_temperature": 0.05},
            {},
            (EFFECT, "objective.first_temperature"),
        ),
        (
            {"patch_weight": 1.0, "shared_head": True, "patch_head": HeadConfig(layers=2)},
            {},
            (EFFECT, "objective.patch_head"),
        ),
    ],
)
def test_refusals(fields: dict, model: dict, named: Told) -> None:
    cfg = DinoConfig(**{"small_size": (8, 8), **fields})
    with refused_as(named):
        cfg.check(_model(**model), DataConfig())


def test_a_run_needs_its_average_and_cuts_no_batch() -> None:
    config_lib.check(_config())
    for fields, code, field in (
        ({"ema_decay": 0.0}, "config.checks.average_is_kept", ""),
        ({"accum_steps": 2}, "config.checks.steps_divide_the_batch", "accum_steps"),
        ({"evals": {"val": LossEval()}}, "config.checks._check_eval", ""),
        ({"ema_decay": 0.0, "ema_decay_end": 1.0}, EFFECT, "ema_decay_end"),
    ):
        with refused_by(code, field):
            config_lib.check(_config(**fields))
    config_lib.check(_config(evals={"knn": KNNEval()}))
    config_lib.check(_config(objective=DinoConfig(small_size=(8, 8), patch_weight=1.0)))
    still = _model(dynamic_image_size=False)
    for fields in ({"small_size": (16, 16)}, {"small_crops": 0, "small_size": (8, 8)}):
        config_lib.check(_config(model=still, objective=DinoConfig(**fields)))


def test_a_collapse_is_told() -> None:
    objective = _objective()
    fine = {"marginal_entropy": 5.0, "feature_rank": 1.4}
    assert objective.alarm(fine) == ""
    assert "the same target" in objective.alarm({**fine, "marginal_entropy": 0.5})
    assert "on one line" in objective.alarm({**fine, "feature_rank": 1.01})
    assert objective.alarm({}) == ""  # no step since the last line
