# SPDX-License-Identifier: Apache-2.0
"""I-JEPA's blocks; its predictor and loss against the authors' code, stored with its weights."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from vit_jax import models, objectives, trees
from vit_jax.data import DataConfig
from vit_jax.models import ViTConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.posemb import PosEmbed, sincos2d
from vit_jax.objectives import Context, IJepa, IJepaConfig
from vit_jax.objectives.ijepa import Blocks, draw, normalized, smooth_l1
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.layout import Own
from vit_jax.weights.names.timm import entries, is_ignored

GOLDEN = Path(__file__).parents[2] / "golden"
GRID = (16, 16)


def _objective() -> IJepa:
    sizes = {"patch": (4, 4), "image_size": (24, 24), "dim": 24, "depth": 1, "mlp_dim": 48}
    model: ViTConfig = models.variant(
        "vit_h14_ijepa", num_classes=0, num_heads=4, pos_embed=PosEmbed.SINCOS2D_MAE, **sizes
    )
    assert model.gelu is Gelu.ERF
    cfg = IJepaConfig(predictor_dim=16, predictor_depth=2, predictor_heads=4)
    found = objectives.create(cfg, model, DataConfig())
    assert isinstance(found, IJepa)
    return found


def test_the_predictor_is_the_authors() -> None:
    objective = _objective()
    stored = dict(np.load(GOLDEN / "ijepa_predictor.npz"))
    weights = load_file(GOLDEN / "ijepa_predictor.safetensors")
    np.testing.assert_allclose(
        weights.pop("predictor_pos_embed")[0], sincos2d(6, 6, 16, PosEmbed.SINCOS2D_MAE), atol=1e-6
    )
    abstract = jax.eval_shape(objective.init, jax.random.key(0))[0]
    own = Own({name: abstract[name] for name in objective.own_parameters}, objective.own_heads)
    known = entries(objective.model, own)
    params = trees.nest(fill(known, in_memory(weights), is_ignored=is_ignored))["params"]
    # And back: every tensor of the file, to the bit.
    leaves = dict(trees.named_leaves({"params": params}))
    for entry in known:
        value = np.asarray(leaves[entry.name])
        for parts, layer in zip(entry.layers, value if entry.stacked else [value], strict=True):
            assert entry.encode is not None
            for part, there in zip(parts, entry.encode(layer), strict=True):
                np.testing.assert_array_equal(there, weights.pop(part.key))
    assert not weights
    targets = jnp.asarray(stored["in_pred"].swapaxes(0, 1), jnp.int32)  # [B, M, T]
    kept, tokens = jnp.asarray(stored["in_enc"], jnp.int32), jnp.asarray(stored["in_encoded"])
    real = jnp.ones((3, 6), bool)

    def ours(blocks: jax.Array) -> np.ndarray:
        """In the order of the file: [M B, T, D]."""
        return np.asarray(blocks).swapaxes(0, 1).reshape(12, *blocks.shape[2:])

    @jax.jit
    def predict(tokens: jax.Array, targets: jax.Array, real: jax.Array) -> Any:
        with jax.default_matmul_precision("highest"):
            return objective.predictor.apply({"params": params}, tokens, kept, targets, real)

    found = predict(tokens, targets, real)
    np.testing.assert_allclose(ours(found), stored["out_predicted"], atol=5e-5, rtol=0)
    wanted = normalized(jnp.asarray(stored["in_target"]))
    at = targets.reshape(3, -1, 1)
    wanted = jnp.take_along_axis(wanted, at, axis=1).reshape(3, 4, 6, 24)
    np.testing.assert_allclose(ours(wanted), stored["out_targets"], atol=5e-5, rtol=0)
    loss = smooth_l1(found, wanted).mean()
    np.testing.assert_allclose(loss, stored["out_loss"], rtol=1e-5)
    weights_of = jnp.asarray(stored["ct_predicted"]).reshape(4, 3, 6, 24).swapaxes(0, 1)

    def scalar(tokens: jax.Array) -> jax.Array:
        found = predict(tokens, targets, real)
        return (found * weights_of).sum() + stored["ct_loss"] * smooth_l1(found, wanted).mean()

    gradient = jax.grad(scalar)(tokens)
    np.testing.assert_allclose(gradient, stored["grad_encoded"], atol=5e-5, rtol=0)
    # What fills the buffer is seen by none, whatever it is.
    more = jnp.concatenate([targets, targets[:, :, :2]], axis=2)
    filled = predict(tokens, more, jnp.arange(8)[None] < jnp.full((3, 1), 6))
    np.testing.assert_allclose(filled[:, :, :6], found, atol=1e-6)


def test_blocks_are_rectangles_that_the_context_avoids() -> None:
    cfg = IJepaConfig()
    drawn = jax.jit(lambda key: draw(key, 32, GRID, 76, cfg))
    blocks = [Blocks(*map(np.asarray, drawn(jax.random.key(i)))) for i in range(4)]
    counts = set()
    for found in blocks:
        assert found.kept.shape == (32, 76)
        assert found.targets.shape[:2] == (32, 4)
        counts.add(count := int(found.real[0].sum()))
        assert (found.real == (np.arange(found.real.shape[1]) < count)).all()
        sides = set()
        for kept, targets in zip(found.kept, found.targets[:, :, :count], strict=True):
            assert len({*kept.tolist()}) == 76
            for block in targets:
                rows, columns = np.unique(block // 16), np.unique(block % 16)
                sides.add((len(rows), len(columns)))
                assert len(rows) * len(columns) == len({*block.tolist()}) == count
                assert np.ptp(rows) + 1 == len(rows)
                assert np.ptp(columns) + 1 == len(columns)
            free = 256 - len({*targets.reshape(-1).tolist()})
            shared = {*kept.tolist()} & {*targets.reshape(-1).tolist()}
            assert len(shared) == max(76 - free, 0)
        assert len(sides) == 1, "one size in a batch"
        firsts = {int(targets[0, 0]) for targets in found.targets}
        assert len(firsts) > 10, "another place in each image"
    assert len(counts) > 1, "another size in each step"
    again = draw(jax.random.key(0), 32, GRID, 76, cfg)
    for one, other in zip(again, blocks[0], strict=True):
        np.testing.assert_array_equal(one, other)
    # What an image gets depends on its place in the batch, not on the size of the batch.
    few = draw(jax.random.key(0), 4, GRID, 76, cfg)
    np.testing.assert_array_equal(few.kept, blocks[0].kept[:4])


def test_a_step_predicts_the_average_and_learns_by_the_context_alone() -> None:
    objective = _objective()
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    ema = {"params": jax.tree.map(lambda x: 1.1 * x, params)}
    kernel = params["blocks"]["mlp"]["fc2"]["kernel"]
    assert kernel.std() == np.float32(kernel.std())  # one block: 0.02 / sqrt(2)
    np.testing.assert_allclose(kernel.std(), 0.02 / np.sqrt(2), rtol=0.1)
    images = np.random.default_rng(0).integers(0, 256, (4, 24, 24, 3), np.uint8)
    batch = objective.prepare({"image": jnp.asarray(images)}, jax.random.key(1))

    def loss(params: Any, ema: Any, batch: Any) -> Any:
        context = Context(frozen={}, model_state={}, ema=ema, objective=None, step=0)
        return objective.loss(params, context, batch, jax.random.key(2))[0]

    step = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    value, (grads, of_teacher) = step(params, ema, batch)
    # By hand, of the pieces that the other tests compare.
    tokens = objective.module.apply(ema, batch["image"], train=False).tokens
    found = objective._predicted(params, {}, batch, jax.random.key(0), train=False)[0]
    count, errors = int(batch["real"][0].sum()), []
    for i in range(4):
        for block in range(4):
            at = batch["targets"][i, block, :count]
            wanted = normalized(tokens[i : i + 1])[:, at]
            errors.append(smooth_l1(found[i : i + 1, block : block + 1, :count], wanted[None]))
    np.testing.assert_allclose(value, np.mean(errors), rtol=1e-5)
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(of_teacher))
    assert all(np.any(leaf) for leaf in jax.tree.leaves(grads) if leaf.size > 1)
    # A patch that is neither of the context nor seen by the teacher's targets changes nothing here.
    outside = sorted({*range(36)} - {*np.asarray(batch["kept"][0]).tolist()})[0]
    row, column = 4 * (outside // 6), 4 * (outside % 6)
    other = batch["image"].at[0, row : row + 4, column : column + 4].add(1.0)
    again = objective._predicted(
        params, {}, {**batch, "image": other}, jax.random.key(0), train=False
    )
    np.testing.assert_allclose(again[0], found, atol=1e-6)
