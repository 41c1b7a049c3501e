# SPDX-License-Identifier: Apache-2.0
"""Masked patch prediction: ids by hand, shares of the corruption, and where the loss looks."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.objectives.test_masked_patch import _objective
from vit_jax.objectives import Context, MaskedPatch
from vit_jax.objectives.masked_patch import PatchTarget

CONTEXT = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)


def _batch(size: int = 4, channels: int = 3) -> dict[str, Any]:
    image = np.random.default_rng(0).integers(0, 256, (size, 16, 16, channels), np.uint8)
    return {"image": jnp.asarray(image)}


def test_the_loss_at_the_start_is_that_of_no_knowledge() -> None:
    for target, outputs in ((PatchTarget.MEAN, 512), (PatchTarget.GRID, 512)):
        objective = _objective(target=target)
        params, _ = jax.jit(objective.init)(jax.random.key(0))
        batch = jax.jit(objective.prepare)(_batch(), jax.random.key(1))
        loss, aux = jax.jit(objective.loss)(params, CONTEXT, batch, jax.random.key(2))
        assert float(loss) == pytest.approx(math.log(outputs), rel=1e-6)
        assert set(aux.metrics) == {"loss", "patch_top1"}


def test_only_corrupted_patches_are_predicted() -> None:
    objective = _objective()
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    batch = jax.jit(objective.prepare)(_batch(), jax.random.key(1))
    source, corrupted = np.asarray(batch["source"]), np.asarray(batch["corrupted"])
    assert corrupted.shape == (4, 8)
    seen: dict[str, Any] = {}

    class Tokens(MaskedPatch):
        def apply(self, params: Any, *args: Any, **kwargs: Any) -> Any:
            out, state = MaskedPatch.apply(self, params, *args, **kwargs)
            return dataclasses.replace(out, tokens=out.tokens + seen["added"]), state

    spy = Tokens(objective.cfg, objective.model, objective.data)
    params["patch_head"]["kernel"] = jnp.ones_like(params["patch_head"]["kernel"])
    params["patch_head"]["kernel"] *= jnp.arange(512.0)[None] / 512

    def loss(added: jax.Array) -> jax.Array:
        seen["added"] = added
        return spy.loss(params, CONTEXT, batch, jax.random.key(2))[0]

    grads = np.asarray(jax.jit(jax.grad(loss))(jnp.zeros((4, 17, 16))))
    touched = np.abs(grads).max(axis=-1) > 0
    expected = np.zeros((4, 17), bool)
    np.put_along_axis(expected, corrupted + 1, values=True, axis=1)
    np.testing.assert_array_equal(touched, expected)
    assert (source == 16).any()


def test_the_mask_token_and_the_swapped_patches_enter_the_encoder() -> None:
    objective = _objective()
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    params["mask_token"] = jnp.full((1, 1, 16), 3.0)
    image = jax.jit(objective.prepare)(_batch(1), jax.random.key(0))["image"]

    apply = jax.jit(objective.apply, static_argnames="train")

    def tokens(source: list[int], image: jax.Array) -> np.ndarray:
        state, rng = {}, jax.random.key(0)
        given = jnp.asarray([source])
        out, _ = apply(params, state, image, rng, train=False, source=given)
        return np.asarray(out.tokens)

    same = list(range(16))
    plain = apply(params, {}, image, jax.random.key(0), train=False)[0].tokens
    np.testing.assert_array_equal(tokens(same, image), plain)
    # Patch 0 shows patch 5: as an image in which the pixels of patch 0 are those of patch 5.
    copied = image.at[:, :4, :4].set(image[:, 4:8, 4:8])
    np.testing.assert_allclose(tokens([5, *same[1:]], image), tokens(same, copied), atol=1e-6)
    hidden = [16, *same[1:]]
    np.testing.assert_allclose(
        tokens(hidden, image), tokens(hidden, image.at[:, :4, :4].set(9.0)), atol=1e-6
    )
    assert np.abs(tokens(hidden, image) - plain).max() > 1e-3


def test_pixels_are_the_normalised_ones() -> None:
    objective = _objective(target=PatchTarget.PIXELS)
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    batch = jax.jit(objective.prepare)(_batch(), jax.random.key(1))
    loss, aux = jax.jit(objective.loss)(params, CONTEXT, batch, jax.random.key(2))
    image, corrupted = np.asarray(batch["image"]), np.asarray(batch["corrupted"])
    squares = []
    for row, places in zip(image, corrupted, strict=True):
        for place in places:
            y, x = divmod(int(place), 4)
            squares.append((row[4 * y : 4 * y + 4, 4 * x : 4 * x + 4] ** 2).mean())
    assert float(loss) == pytest.approx(np.mean(squares), rel=1e-5)
    assert set(aux.metrics) == {"loss"}


def test_evaluation_corrupts_an_image_alike_in_any_batch() -> None:
    objective = _objective(channels=1)
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    params["patch_head"]["kernel"] = jax.random.normal(jax.random.key(4), (16, 8))
    batch = _batch(channels=1)
    whole = jax.jit(objective.example_losses)({"params": params}, batch)
    part = jax.jit(objective.example_losses)({"params": params}, {"image": batch["image"][2:]})
    np.testing.assert_allclose(whole[2:], part, rtol=1e-6)
    assert len(set(np.asarray(whole).round(4).tolist())) == 4
