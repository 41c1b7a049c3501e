# SPDX-License-Identifier: Apache-2.0
"""Gram anchoring's loss against float64 numbers, its schedule, its crops, what it refuses."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import EFFECT, Told, refused_as
from vit_jax import models, objectives
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.stream.transform import draws
from vit_jax.objectives import Dino, DinoConfig, GramConfig, gram
from vit_jax.settings.durations import Clock

GOLDEN = Path(__file__).parents[2] / "golden" / "gram.npz"
CLOCK = Clock(batch_size=4, num_examples=400, total_steps=1000)


def _model(**fields: Any) -> Any:
    small = {"num_classes": 0, "image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
    return models.variant("vit_mu8", **{**small, "dynamic_image_size": True, **fields})


def test_loss_and_grid_are_those_of_float64() -> None:
    with np.load(GOLDEN) as file:
        golden = {name: file[name] for name in file.files}
    student, teacher, large = (
        jnp.asarray(golden[f"in_{name}"], jnp.float32)
        for name in ("student", "teacher", "teacher_twice")
    )
    value, gradient = jax.value_and_grad(gram.gram_loss)(student, teacher)
    np.testing.assert_allclose(value, golden["out_image_level"], rtol=1e-5)
    np.testing.assert_allclose(gradient, golden["out_grad_image_level"], rtol=1e-4, atol=1e-7)
    halved = gram.regridded(large, (6, 6), (3, 3))
    np.testing.assert_allclose(halved, golden["out_teacher_halved"], rtol=1e-5, atol=1e-6)
    assert not np.any(jax.grad(gram.gram_loss, 1)(student, teacher))


def test_weight_and_copies_by_step() -> None:
    cfg = GramConfig(weight=2.0, start="100 steps", warmup="10 steps", every="50 steps", copies=3)
    kept = {"a": jnp.zeros(2)}
    found = {}
    for step in range(400):
        at = jnp.asarray(step)
        kept = gram.copied(cfg, CLOCK, at, kept, {"a": jnp.full(2, float(step))})
        found[step] = float(kept["a"][0])
    assert {step for step in found if found[step] == step and step} == {100, 150, 200}
    assert (found[99], found[399]) == (0.0, 200.0)
    weights = [
        float(gram.weight(cfg, CLOCK, jnp.asarray(step))) for step in (0, 100, 105, 110, 900)
    ]
    assert weights == pytest.approx([0, 0, 1, 2, 2], abs=1e-6)
    # Without a start the copy is of step 0; without `every` there is no other.
    once = GramConfig(weight=1.5)
    assert float(gram.weight(once, CLOCK, jnp.asarray(0))) == 1.5
    for step, value in ((0, 1.0), (1, 0.0)):
        copy = gram.copied(once, CLOCK, jnp.asarray(step), kept, {"a": jnp.ones(2)})
        assert (float(copy["a"][0]) == 1.0) == bool(value)


def test_the_copy_sees_the_same_crops_without_colours() -> None:
    colours = TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True, auto_augment="dino-blur1")
    cfg = DinoConfig(
        second=TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True, color_jitter=0.4),
        small_size=(8, 8),
        gram=GramConfig(weight=1.0, size=(32, 32)),
    )
    objective = objectives.create(cfg, _model(channels=3), DataConfig(transform=colours))
    assert isinstance(objective, Dino)
    each = {draw.array: draw for draw in draws(objective.views, exact=True)}
    y, x = np.mgrid[:128, :128]
    image = np.stack([2 * x, 2 * y, x + y], axis=-1).astype(np.uint8)  # says where it is
    positions = np.arange(3)
    for twin, crop in (("gram_1", "global_1"), ("gram_2", "global_2")):
        numbers = each[twin].number, each[crop].number
        assert numbers[0] == numbers[1]
        plain = each[twin].transform.cfg
        assert (plain.auto_augment, plain.color_jitter) == ("", 0.0)
        # By equal transforms, the large one is the other, but for its pixels.
        other = objectives.create(cfg, _model(channels=3), DataConfig(transform=plain)).views[
            "global_1"
        ]
        small = draws({"a": other}, exact=True)[0].transform.variations(0, positions, numbers[1])
        large = each[twin].transform.variations(0, positions, numbers[0])
        for one, two in zip(small, large, strict=True):
            halved = two(image).reshape(16, 2, 16, 2, 3).mean(axis=(1, 3))
            assert np.abs(halved - one(image)).max() < 3
    numbers = [draw.number for draw in draws(objective.views, exact=True)]
    assert numbers == [0, 1, *range(2, 10), 0, 1]


@pytest.mark.parametrize(
    ("fields", "model", "named"),
    [
        ({"start": "5 steps"}, {}, (EFFECT, "objective.gram.start")),
        ({"weight": 1.0, "copies": 2}, {}, (EFFECT, "objective.gram.copies")),
        ({"weight": 1.0, "start": "soon"}, {}, ("settings.durations.parse", "")),
        ({"weight": 1.0, "size": (30, 30)}, {}, ("models.base.grid", "model.patch")),
        (
            {"weight": 1.0, "size": (32, 32)},
            {"dynamic_image_size": False},
            ("objectives.gram.GramConfig.check", "objective.gram.size"),
        ),
    ],
)
def test_refusals(fields: dict, model: dict, named: Told) -> None:
    with refused_as(named):
        GramConfig(**fields).check(_model(**model))
