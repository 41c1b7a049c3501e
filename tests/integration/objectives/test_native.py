# SPDX-License-Identifier: Apache-2.0
"""Packed rows learn what padded ones do, to rounding; mixup stays inside of both images."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.integration.models.families.test_native import small
from vit_jax import models
from vit_jax.data import GRIDS, Crop, DataConfig, MixConfig, TransformConfig
from vit_jax.objectives import Context, Supervised, SupervisedConfig, native

GRID = np.array([[2, 3], [1, 4], [3, 3], [2, 2], [1, 1], [4, 2]], np.int32)
LENGTH = 16


def batches() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return six images in rows of their own, and the same in three rows."""
    rng = np.random.default_rng(0)
    patches = [rng.integers(0, 256, (n, 48), np.uint8) for n in GRID.prod(axis=1)]
    label = rng.integers(0, 7, 6).astype(np.int32)
    padded = np.zeros((6, LENGTH, 48), np.uint8)
    for row, each in zip(padded, patches, strict=True):
        row[: len(each)] = each
    rows, slots = [[0, 2], [1, 5], [3, 4]], 3
    packed = np.zeros((3, LENGTH, 48), np.uint8)
    grids, labels = np.zeros((3, slots, 2), np.int32), np.zeros((3, slots), np.int32)
    for i, held in enumerate(rows):
        joined = np.concatenate([patches[k] for k in held])
        packed[i, : len(joined)] = joined
        grids[i, : len(held)], labels[i, : len(held)] = GRID[held], label[held]
    return (
        {"image": padded, GRIDS: GRID, "label": label},
        {"image": packed, GRIDS: grids, "label": labels},
    )


def objective(pack: int = 0, **fields: Any) -> Supervised:
    model = small("naflexvit_b16_gap", num_registers=1, qk_norm=True)
    transform = TransformConfig(crop=Crop.NATIVE_RANDOM, lengths=(LENGTH,))
    data = DataConfig(batch_size=6, pack=pack, transform=transform, **fields)
    return Supervised(SupervisedConfig(label_smoothing=0.1), model, data)


def test_packed_and_padded_rows_have_the_same_loss_and_gradient() -> None:
    key = jax.random.key(0)
    params, _ = objective().init(key)
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), params)
    found = []
    for pack, batch in zip((0, 3), batches(), strict=True):
        learns = objective(pack)

        @jax.jit
        def step(params: Any, batch: Any, learns: Supervised = learns) -> Any:
            ctx = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)

            def loss(params: Any) -> Any:
                total, aux = learns.loss(params, ctx, learns.prepare(batch, key), key)
                return total, aux.metrics

            return jax.value_and_grad(loss, has_aux=True)(params)

        found.append(step(params, jax.tree.map(jnp.asarray, batch)))
    (padded, ours), (packed, theirs) = found
    for name in ("loss", "top1"):
        np.testing.assert_allclose(padded[1][name], packed[1][name], rtol=2e-6)
    patches = GRID.prod(axis=1).sum()
    np.testing.assert_allclose(padded[1]["fill"], patches / (6 * LENGTH))
    np.testing.assert_allclose(packed[1]["fill"], patches / (3 * LENGTH))
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(one, other, atol=3e-6 * float(jnp.abs(one).max()) + 1e-8)
    # The images of a packed row share its FLOPs; in padded rows each has a row's.
    variables = {"params": params}
    assert objective(3).flops(variables) < objective().flops(variables)


def test_mixup_blends_patches_that_both_images_have() -> None:
    padded, _ = batches()
    learns = objective(mix=MixConfig(mixup_alpha=1.0))
    batch = jax.tree.map(jnp.asarray, padded)
    mixed = learns.prepare(batch, jax.random.key(1))
    plain = native.image(batch, learns.model, learns.data)
    other = jnp.roll(plain, 1, axis=0)
    # Image 1 is 1 x 4, image 0 before it 2 x 3: they share three patches of four.
    share = 1 - (mixed["image"] - other)[1, 0, 0] / (plain - other)[1, 0, 0]
    assert 0 < share <= 0.5  # of the other: its own is the larger
    blend = (1 - share) * plain[1, :3] + share * other[1, :3]
    np.testing.assert_allclose(mixed["image"][1, :3], blend, atol=1e-5)
    np.testing.assert_array_equal(mixed["image"][1, 3:], plain[1, 3:])
    rows = mixed["targets"].sum(axis=-1)
    np.testing.assert_allclose(rows, 1, rtol=1e-5)
    own = learns.prepare(batch, jax.random.key(1))["targets"]
    np.testing.assert_array_equal(own, mixed["targets"])
    labels = padded["label"]
    if labels[0] != labels[1]:
        smooth = 0.1 / 7
        expected = 0.9 * float(share) * 3 / 4 + smooth
        np.testing.assert_allclose(mixed["targets"][1, labels[0]], expected, rtol=1e-4)


@pytest.mark.parametrize("pool", ["cls", "map"])
def test_every_pool_reads_each_image_of_a_row(pool: str) -> None:
    fields = {"pool": pool, "fc_norm": False, "class_token": pool == "cls"}
    cfg = models.with_fields(objective().model, {**fields, "depth": 1})
    module = models.create(cfg)
    padded, packed = batches()
    key = jax.random.key(0)
    params, _ = models.init(module, cfg, key)
    params = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(key, x.shape), params)

    @jax.jit
    def run(batch: Any) -> Any:
        image = native.image(batch, cfg, objective().data)
        out: Any = module.apply({"params": params}, image, grids=batch[GRIDS])
        return out.logits

    one, several = (run(jax.tree.map(jnp.asarray, batch)) for batch in (padded, packed))
    for i, held in enumerate([[0, 2], [1, 5], [3, 4]]):
        np.testing.assert_allclose(several[i, :2], one[np.array(held)], atol=2e-5)
