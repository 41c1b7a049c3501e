# SPDX-License-Identifier: Apache-2.0
"""What every family does: drop in training alone, see each image alone, refuse another size.

The train step of each, on every layout and in bfloat16: tests/integration/train/test_families.py.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.models import ModelConfig, lora

CONVOLUTIONS = ("bit", "regnet", "resnet")  # of these the head alone is dense
RATES = ("dropout_rate", "attention_dropout_rate", "drop_path_rate")


def rates(cfg: ModelConfig) -> list[str]:
    return [field.name for field in dataclasses.fields(cfg) if field.name in RATES]


def draw(cfg: ModelConfig) -> dict[str, Any]:
    """Draw variables under which no branch is silent."""
    rng = np.random.default_rng(0)

    def leaf(name: str, x: jax.ShapeDtypeStruct) -> np.ndarray:
        centre = 1.0 if name.endswith(("scale", "var")) else 0.0
        spread = 0.1 if x.ndim == 1 else 1 / math.sqrt(math.prod(x.shape[:-1]))
        return rng.normal(centre, spread, x.shape).astype(np.float32)

    return trees.map_named(leaf, models.abstract(cfg))


@functools.partial(jax.jit, static_argnums=(0, 4))  # one program for each config
def run(cfg: ModelConfig, variables: Any, image: Any, key: Any, train: bool) -> Any:
    """Return the output and the new statistics."""
    apply = functools.partial(models.create(cfg).apply, train=train, mutable=["batch_stats"])
    return apply(variables, image, rngs={"dropout": key})


@pytest.mark.parametrize("family", [family for family in TINY if family not in CONVOLUTIONS])
def test_low_rank_changes_compute_what_they_do_merged(family: str) -> None:
    cfg = TINY[family]
    variables, image = draw(cfg), jnp.ones((1, *models.input_shape(cfg)))
    with lora.dense_layers() as dense:
        jax.eval_shape(lambda: models.create(cfg).apply(variables, image))
    changed = {name for name in dense if not name.startswith("head")}
    assert changed
    params = variables["params"]
    kernels = dict(trees.named_leaves(params))
    layers = [trees.layer_names(f"{name}/kernel", kernels[f"{name}/kernel"]) for name in changed]
    pattern = f"^({'|'.join(name for names in layers for name in names)})$"
    shapes = models.abstract(cfg)["params"]
    adapter = lora.adapt(lora.LoraConfig(pattern=pattern, rank=2, alpha=1.0), shapes, dense)
    rng = np.random.default_rng(1)
    factors = {
        name: rng.standard_normal(leaf.shape, np.float32) if "/lora_" in name else kernels[name]
        for name, leaf in trees.named_leaves(adapter.trained)
    }
    base = trees.map_named(lambda name, _: kernels[name], adapter.base)
    for name in changed:
        a, b = factors[f"{name}/lora_a"], factors[f"{name}/lora_b"]
        kernels[f"{name}/kernel"] = lora.merged(kernels[f"{name}/kernel"], a, b, 0.5)
    joined = adapter.join(*jax.tree.map(jnp.asarray, (trees.nest(factors), base)))
    beside, merged = (
        run(cfg, {**variables, "params": p}, image, jax.random.key(0), False)[0].logits
        for p in (joined, trees.nest(kernels))
    )
    plain = run(cfg, variables, image, jax.random.key(0), False)[0].logits
    np.testing.assert_allclose(beside, merged, rtol=1e-4, atol=1e-4)
    assert np.abs(merged - plain).max() > 1e-2


@pytest.fixture(scope="module", params=TINY)
def drawn(request: pytest.FixtureRequest) -> tuple[ModelConfig, Any, jax.Array]:
    """Return a family's config, its variables and three images."""
    cfg = TINY[request.param]
    cfg = dataclasses.replace(cfg, **dict.fromkeys(rates(cfg), 0.0))
    images = jax.random.normal(jax.random.key(0), (3, *models.input_shape(cfg)))
    return cfg, draw(cfg), images


def test_randomness_and_statistics_are_of_training_alone(drawn: Any) -> None:
    cfg, variables, images = drawn
    keys = jax.random.split(jax.random.key(1))
    plain, kept = run(cfg, variables, images, keys[0], False)
    one = dataclasses.replace(cfg, **dict.fromkeys(rates(cfg), 0.5))
    evaluated, _ = run(one, variables, images, keys[0], False)
    np.testing.assert_array_equal(evaluated.logits, plain.logits)
    for field in rates(cfg):
        one = dataclasses.replace(cfg, **{field: 0.5})
        first, second = (run(one, variables, images, key, True)[0].logits for key in keys)
        assert not np.allclose(first, second, atol=1e-5), field
    if "batch_stats" in variables:
        before = variables["batch_stats"]
        jax.tree.map(np.testing.assert_array_equal, kept["batch_stats"], before)
        _, moved = run(cfg, variables, images, keys[0], True)
        same = jax.tree.map(lambda a, b: (a == b).all(), moved["batch_stats"], before)
        assert not any(jax.tree.leaves(same))


def test_each_example_is_its_own(drawn: Any) -> None:
    cfg, variables, images = drawn
    key = jax.random.key(1)
    together = run(cfg, variables, images, key, False)[0].logits
    other = run(cfg, variables, images.at[0].set(images[0, ::-1]), key, False)[0].logits
    np.testing.assert_array_equal(together[1:], other[1:])
    assert not np.allclose(together[0], other[0], atol=1e-5)


def test_another_size_of_image_is_named(drawn: Any) -> None:
    cfg, variables, _ = drawn
    height, width, channels = models.input_shape(cfg)
    wrong = jax.ShapeDtypeStruct((1, height, 2 * width, channels), jnp.float32)
    with refused_by("models.base.check_input") as caught:
        jax.eval_shape(models.create(cfg).apply, variables, wrong)
    assert f"[B, {height}, {width}, {channels}]" in str(caught.value)
