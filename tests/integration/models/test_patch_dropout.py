# SPDX-License-Identifier: Apache-2.0
"""Patch dropout (arXiv:2208.07220): which tokens training sees, what it costs, on which mesh."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.families.test_vit import small
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import DataConfig
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models.layers import masking
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import MaeConfig, Supervised, SupervisedConfig
from vit_jax.train import build as build_lib

IMAGES = np.random.default_rng(0).standard_normal((8, 16, 24, 3)).astype(np.float32)


def run(cfg: models.ModelConfig, params: Any, **given: Any) -> models.Output:
    rngs = {"dropout": jax.random.key(1)}
    return models.create(cfg).apply({"params": params}, jnp.asarray(IMAGES), rngs=rngs, **given)


def params_of(cfg: models.ModelConfig) -> Any:
    init = jax.jit(lambda key: models.init(models.create(cfg), cfg, key)[0])
    return init(jax.random.key(0))


@pytest.mark.parametrize(
    "fields", [{"num_registers": 2}, {"pool": Pool.GAP}, {"pool": Pool.MAP, "class_token": False}]
)
def test_training_sees_the_prefix_and_the_patches_that_are_drawn(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = small(patch_drop_rate=0.5, **fields)
    params = params_of(cfg)
    kept = jnp.asarray([[7, 0, 3, 4, 11, 9]] * 8)
    shapes = []

    def drawn(key: jax.Array, shape: tuple[int, int], rate: float) -> jax.Array:
        shapes.append((shape, rate))
        return kept

    plain = dataclasses.replace(cfg, patch_drop_rate=0.0)
    expected = run(plain, params, kept=kept)
    np.testing.assert_array_equal(run(cfg, params).logits, run(plain, params).logits)
    first = run(cfg, params, train=True)
    assert first.tokens.shape == (8, models.num_prefix(cfg) + 6, 16)
    monkeypatch.setattr(masking, "drawn", drawn)
    found = run(cfg, params, train=True)
    assert shapes == [((8, 12), 0.5)]
    np.testing.assert_array_equal(found.tokens, expected.tokens)
    assert not np.array_equal(found.tokens, first.tokens)


@pytest.mark.parametrize("cfg", [small(), TINY["hybrid"]], ids=lambda cfg: type(cfg).__name__)
def test_flops_are_those_of_the_pass_that_trains(cfg: Any) -> None:
    cfg = dataclasses.replace(cfg, patch_drop_rate=0.5)
    variables = models.abstract(cfg)
    image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32)
    module, key = models.create(cfg), jax.random.key(0)
    trains = count(
        lambda v, x: module.apply(v, x, train=True, rngs={"dropout": key}), variables, image
    )
    found = Supervised(SupervisedConfig(), cfg, DataConfig()).flops(variables)
    whole = dataclasses.replace(cfg, patch_drop_rate=0.0)
    all_patches = Supervised(SupervisedConfig(), whole, DataConfig()).flops(variables)
    assert found == train_flops(trains) < all_patches


def losses(mesh: MeshConfig, accum_steps: int) -> list[float]:
    cfg = Config(
        model=small(patch_drop_rate=0.5),
        data=DataConfig(batch_size=8),
        duration="10 steps",
        accum_steps=accum_steps,
    )
    parts = build_lib.build(cfg, num_examples=100)
    devices = sharding.make_mesh(mesh)
    batch = {"image": (IMAGES * 64 + 128).astype(np.uint8), "label": np.arange(8, dtype=np.int32)}
    batch["label"] %= 5
    found = []
    with jax.set_mesh(devices):
        state = build_lib.init_state(cfg, parts, devices)
        step = build_lib.compile_steps(parts, devices)[0]
        for _ in range(2):
            given = sharding.global_batch(batch, devices, batch_size=8)
            state, metrics = step(state, {}, given)
            found.append(float(metrics["loss"]))
    return found


@pytest.mark.slow
def test_every_mesh_drops_the_same_patches() -> None:
    one = losses(MeshConfig(data=1), 2)
    np.testing.assert_allclose(losses(MeshConfig(data=2, fsdp=2), 2), one, atol=1e-5, rtol=0)
    assert abs(losses(MeshConfig(data=1), 1)[1] - one[1]) > 1e-4  # other draws


def test_what_it_does_not_go_with_is_refused_in_a_line() -> None:
    with refused_by("models.families.vit_config.check_transformer", "model.patch_drop_rate"):
        models.create(small(patch_drop_rate=0.5, token_merging=2))
    with refused_by("objectives.hiding.check", "model.patch_drop_rate"):
        MaeConfig().check(small(patch_drop_rate=0.5, num_classes=0), DataConfig())
    with refused_by("objectives.supervised.SupervisedConfig.check", "model.patch_drop_rate"):
        SupervisedConfig(train_mode=False).check(small(patch_drop_rate=0.5), DataConfig())
    with refused_by("models.with_fields") as caught:
        models.variant("swin_t", patch_drop_rate=0.5)
    assert "patch_drop_rate" in str(caught.value)
