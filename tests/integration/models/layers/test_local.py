# SPDX-License-Identifier: Apache-2.0
"""Attention within windows, rows and columns is that among all patches under a block mask."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.analysis.flops import forward_flops
from vit_jax.models.base import Remat
from vit_jax.models.layers import block
from vit_jax.models.layers.attention import attend
from vit_jax.models.layers.pool import Pool

VIT = dataclasses.replace(TINY["vit"], depth=4, image_size=(20, 12), drop_path_rate=0.0)
CASES: dict[str, dict[str, Any]] = {
    "windows": {"window": 2, "global_blocks": 2},
    "all_windows": {"window": 3, "class_token": False, "pool": Pool.GAP},
    "registers": {"window": 2, "global_blocks": 1, "num_registers": 2, "scan_unroll": 0},
    "axial": {"axial": True, "qk_norm": True},
    "remat": {"axial": True, "remat": Remat.FULL},
}
# Whether two patches of 5 x 3 see each other in blocks 0 to 3.
ROW, COLUMN = np.divmod(np.arange(15), 3)


def mask(name: str, layer: int, num_prefix: int) -> np.ndarray:
    """Write down who sees whom in one block."""
    side = CASES[name].get("window", 0)
    if name in ("axial", "remat"):
        same = np.equal.outer(ROW, ROW) if layer % 2 == 0 else np.equal.outer(COLUMN, COLUMN)
    else:
        same = np.equal.outer(ROW // side, ROW // side) & np.equal.outer(
            COLUMN // side, COLUMN // side
        )
        last = {"windows": (1, 3), "registers": (3,)}.get(name, ())
        if layer in last:
            same = np.ones_like(same)
    return np.pad(same, ((num_prefix, 0), (num_prefix, 0)), constant_values=True)


def setup(name: str) -> tuple[Any, Any, jax.Array]:
    cfg = dataclasses.replace(VIT, **CASES[name])
    rng = np.random.default_rng(0)
    shapes = models.abstract(cfg)
    variables = jax.tree.map(
        lambda x: jnp.asarray(rng.normal(size=x.shape) * 0.3, jnp.float32), shapes
    )
    image = jnp.asarray(rng.normal(size=(2, 20, 12, 3)), jnp.float32)
    return cfg, variables, image


def plain(cfg: Any) -> Any:
    """Return the config without windows, its blocks unrolled."""
    fields = {"window": 0, "global_blocks": 0, "axial": False, "scan_unroll": 0}
    return dataclasses.replace(cfg, **fields, remat=Remat.NONE)


@pytest.fixture
def masked(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what applies a plain ViT, block by block, under the masks of a case."""

    def apply(name: str, cfg: Any, variables: Any, image: jax.Array) -> Any:
        prefix, whole = models.num_prefix(cfg), plain(cfg)
        # Depth 1 at a time: a scan's blocks would share the mask of the first.
        module = block.Block(block.BlockConfig.of(whole), train=False)
        hidden: list[Any] = []

        def under_mask(q: Any, k: Any, v: Any, **given: Any) -> Any:
            return attend(q, k, v, **{**given, "bias": hidden[-1]})

        class Layers:
            def __call__(self, x: jax.Array, rates: Any) -> Any:
                for i in range(cfg.depth):
                    sees = mask(name, i, prefix)
                    hidden.append(jnp.where(sees, 0.0, -jnp.inf)[None, None])
                    layer = jax.tree.map(lambda leaf, i=i: leaf[i], variables["params"]["blocks"])
                    x, _ = module.apply({"params": layer}, x, rates[i])
                return x, None

        from vit_jax.models import vit

        with monkeypatch.context() as patch:
            patch.setattr(block, "attend", under_mask)
            patch.setattr(vit, "stack", lambda *args, **kwargs: Layers())
            return models.create(whole).apply(variables, image)

    return apply


@pytest.mark.parametrize("name", CASES)
def test_it_is_full_attention_under_a_block_mask(name: str, masked: Any) -> None:
    cfg, variables, image = setup(name)
    assert models.abstract(cfg) == models.abstract(plain(cfg)), "any ViT's checkpoint loads"

    def local(variables: Any) -> Any:
        out = models.create(cfg).apply(variables, image)
        return (out.logits**2).sum(), out

    def whole(variables: Any) -> Any:
        out = masked(name, cfg, variables, image)
        return (out.logits**2).sum(), out

    (_, found), slopes = jax.value_and_grad(local, has_aux=True)(variables)
    (_, expected), wanted = jax.value_and_grad(whole, has_aux=True)(variables)
    np.testing.assert_allclose(found.tokens, expected.tokens, atol=5e-5)
    for key, slope in models.trees.named_leaves(slopes):
        want = dict(models.trees.named_leaves(wanted))[key]
        scale = max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(slope / scale, want / scale, atol=5e-5, err_msg=key)
    unmasked = models.create(plain(cfg)).apply(variables, image)
    assert np.abs(unmasked.tokens - expected.tokens).max() > 0.05, "the mask does nothing"


def test_what_is_captured_is_the_weights_of_all_tokens() -> None:
    cfg, variables, image = setup("windows")
    module = models.create(cfg)
    _, seen = models.captured(module, variables, image)
    weights = np.asarray(seen["blocks/attn/weights"])
    assert weights.shape == (4, 2, 2, 16, 16)
    for layer in range(4):
        sees = mask("windows", layer, 1)
        assert (weights[layer][..., ~sees] == 0).all()
        np.testing.assert_allclose(weights[layer].sum(axis=-1), 1, atol=1e-5)
    output, outputs = models.block_outputs(module, variables, image)
    assert [x.shape for x in outputs] == [(2, 16, 16)] * 4
    assert np.abs(outputs[0] - outputs[-1]).max() > 0.1
    np.testing.assert_array_equal(output.tokens, module.apply(variables, image).tokens)


@pytest.mark.parametrize("scan_unroll", [0, 1])
def test_flops_are_those_counted_by_hand(scan_unroll: int) -> None:
    heads, width, tokens = 2, 8, 16

    def by_hand(pairs: list[int]) -> int:
        linear = 4 * tokens * (4 * 16 * 16 + 2 * 16 * 32)
        attention = sum(2 * heads * width * each for each in pairs)
        return 2 * (15 * 48 * 16 + linear + attention + 16 * 3)

    def counted(**fields: Any) -> int:
        cfg = dataclasses.replace(VIT, scan_unroll=scan_unroll, **fields)
        return forward_flops(models.create(cfg), (20, 12))

    whole = tokens * tokens
    # 6 windows of 2 x 2 over the padded 6 x 4 grid, each with the class token, which sees all.
    windows = 6 * 4 * (4 + 1) + tokens
    rows, columns = 15 * (3 + 1) + tokens, 15 * (5 + 1) + tokens
    assert counted() == by_hand([whole] * 4)
    assert counted(window=2, global_blocks=2) == by_hand([windows, whole] * 2)
    assert counted(axial=True) == by_hand([rows, columns] * 2)


def test_an_unrolled_loop_and_dropout_compute_the_same() -> None:
    cfg, variables, image = setup("windows")
    cfg = dataclasses.replace(cfg, dropout_rate=0.5, drop_path_rate=0.5, attention_dropout_rate=0.5)
    rngs = {"dropout": jax.random.key(3)}
    outputs = [
        models.create(dataclasses.replace(cfg, scan_unroll=unroll)).apply(
            variables, image, train=True, rngs=rngs
        )
        for unroll in (0, 1, 2)
    ]
    for other in outputs[1:]:
        np.testing.assert_allclose(outputs[0].tokens, other.tokens, atol=5e-5)
    plainly = models.create(cfg).apply(variables, image)
    assert np.abs(outputs[0].tokens - plainly.tokens).max() > 0.1
