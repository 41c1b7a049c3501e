# SPDX-License-Identifier: Apache-2.0
"""The loss of all predictions together: both forms of targets, batches that are cut, descent."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from vit_jax.objectives.dense import losses as dense_losses
from vit_jax.objectives.dense.losses import MaskLossConfig, segment_targets


@functools.cache
def _scene() -> dict[str, np.ndarray]:
    """Return a label map of three images, a class of one image absent, void between them."""
    rng = np.random.default_rng(0)
    label_map = rng.integers(-1, 4, (3, 5, 3)).repeat(4, axis=1).repeat(6, axis=2)[:, :, :17]
    label_map[1][label_map[1] == 2] = 0
    logits = rng.normal(size=(2, 3, 6, 20, 17)).astype(np.float32)
    classes = rng.normal(size=(2, 3, 6, 5)).astype(np.float32)
    return {"label_map": label_map.astype(np.int16), "masks": 3 * logits, "classes": classes}


def test_a_label_map_is_the_masks_of_its_classes() -> None:
    scene = _scene()
    label_map = scene["label_map"]
    targets = dense_losses.label_targets(jnp.asarray(label_map), 4)
    found = [set(row[row >= 0].tolist()) for row in np.asarray(targets.classes)]
    assert found == [set(np.unique(image[image >= 0]).tolist()) for image in label_map]
    assert np.asarray(dense_losses.label_targets(jnp.asarray(label_map), 4, 2).classes).shape == (
        3,
        2,
    )
    every = np.asarray(targets.classes)
    bits = np.packbits(label_map[:, None] == every[:, :, None, None], axis=-1)
    same = segment_targets(jnp.asarray(bits), targets.classes, 17)
    # Points and matching are equal, so is all else.
    cfg = MaskLossConfig(points=20)
    shares = dense_losses.row_shares(targets.classes, cfg, 6)
    masks, classes = jnp.asarray(scene["masks"]), jnp.asarray(scene["classes"])
    loss: Any = jax.jit(dense_losses.set_loss, static_argnums=4)
    key = jax.random.key(0)
    one, terms = loss(classes, masks, targets, shares, cfg, key)
    two, _ = loss(classes, masks, same, shares, cfg, key)
    np.testing.assert_allclose(one, two, rtol=1e-6)
    assert set(terms) == {"class_loss", "mask_loss", "dice_loss"}
    # The second prediction's terms are the last; the total has both.
    last = 2 * terms["class_loss"] + 5 * terms["mask_loss"] + 5 * terms["dice_loss"]
    assert 0 < last < one

    # A batch that is cut has the same loss, given the shares of the whole.
    def costs(row: slice) -> jax.Array:
        part = jax.tree.map(lambda x: x[row], targets)
        few = {name: share[row] for name, share in shares.items()}
        said = [
            dense_losses.class_losses(c, t, q, 0.1)
            for c, t, q in zip(classes[0, row], part.classes, part.classes, strict=True)
        ]
        return (jnp.stack(said) * few["class_share"]).mean()

    whole, parts = costs(slice(3)), [costs(slice(i, i + 1)) for i in range(3)]
    np.testing.assert_allclose(whole, np.mean(parts), rtol=1e-6)


def test_the_gradient_descends_to_the_targets() -> None:
    scene = _scene()
    targets = dense_losses.label_targets(jnp.asarray(scene["label_map"]), 4)
    cfg = MaskLossConfig(points=60)
    shares = dense_losses.row_shares(targets.classes, cfg, 6)

    tx = optax.adam(0.2)

    @jax.jit
    def step(x: Any, state: Any, key: jax.Array) -> Any:
        value, gradient = jax.value_and_grad(
            lambda x: dense_losses.set_loss(*x, targets, shares, cfg, key)[0]
        )(x)
        updates, state = tx.update(gradient, state)
        return optax.apply_updates(x, updates), state, value

    x: Any = jnp.asarray(scene["classes"][:1]), jnp.asarray(scene["masks"][:1])
    state, values = tx.init(x), []
    for key in jax.random.split(jax.random.key(1), 100):
        x, state, value = step(x, state, key)
        values.append(float(value))
    assert np.mean(values[-10:]) < 0.3 * values[0]
