# SPDX-License-Identifier: Apache-2.0
"""Attention within windows, rows and columns is that among all patches under a block mask."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.cost.flops import forward_flops
from vit_jax.models.base import Remat
from vit_jax.models.families import vit
from vit_jax.models.intermediates import output_and_layers
from vit_jax.models.layers import block
from vit_jax.models.layers.attention import attend
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.rope import Rope, Rotation

VIT = dataclasses.replace(TINY["vit"], depth=4, image_size=(20, 12), drop_path_rate=0.0)
CASES: dict[str, dict[str, Any]] = {
    "windows": {"window": 2, "global_blocks": 2},
    "all_windows": {"window": 3, "depth": 2, "class_token": False, "pool": Pool.GAP},
    "registers": {
        **{"window": 2, "global_blocks": 1, "depth": 2},
        **{"num_registers": 2, "scan_unroll": 0},
    },
    "axial": {"axial": True, "depth": 2, "rope": Rope.LANG, "remat": Remat.FULL},
}
GLOBAL = {"windows": (1, 3), "registers": (1,)}
# Whether two patches of 5 x 3 see each other in blocks 0 to 3.
ROW, COLUMN = np.divmod(np.arange(15), 3)


def mask(name: str, layer: int, num_prefix: int) -> np.ndarray:
    """Write down who sees whom in one block."""
    side = CASES[name].get("window", 0)
    if name == "axial":
        same = np.equal.outer(ROW, ROW) if layer % 2 == 0 else np.equal.outer(COLUMN, COLUMN)
    else:
        rows, columns = (np.equal.outer(each // side, each // side) for each in (ROW, COLUMN))
        same = rows & columns
    if layer in GLOBAL.get(name, ()):
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
        rotation = Rotation.of(whole, (5, 3), prefix)
        module = block.Block(block.BlockConfig.of(whole, rotation=rotation), train=False)
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
        return models.create(cfg).apply(variables, image)

    def whole(variables: Any) -> Any:
        return masked(name, cfg, variables, image)

    outputs = jax.jit(lambda v: (local(v), whole(v), models.create(plain(cfg)).apply(v, image)))
    found, expected, unmasked = outputs(variables)
    np.testing.assert_allclose(found.tokens, expected.tokens, atol=5e-5)
    assert np.abs(unmasked.tokens - expected.tokens).max() > 0.05, "the mask does nothing"


@pytest.mark.parametrize("name", ["registers", "axial"])
def test_so_are_its_gradients(name: str, masked: Any) -> None:
    cfg, variables, image = setup(name)

    def slopes(apply: Any) -> Any:
        return jax.grad(lambda v: (apply(v).logits ** 2).sum())

    local = slopes(lambda v: models.create(cfg).apply(v, image))
    whole = slopes(lambda v: masked(name, cfg, v, image))
    found, expected = jax.jit(lambda v: (local(v), whole(v)))(variables)
    wanted = dict(trees.named_leaves(expected))
    for key, slope in trees.named_leaves(found):
        scale = max(1.0, float(np.abs(wanted[key]).max()))
        np.testing.assert_allclose(slope / scale, wanted[key] / scale, atol=5e-5, err_msg=key)


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
    output, layers = output_and_layers(cfg, variables, image)
    assert [layer.patches.shape for layer in layers] == [(2, 5, 3, 16)] * 4
    assert np.abs(layers[0].patches - layers[-1].patches).max() > 0.1
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

    def outputs(variables: Any) -> list[Any]:
        modules = [models.create(dataclasses.replace(cfg, scan_unroll=n)) for n in (0, 1)]
        dropped = [m.apply(variables, image, train=True, rngs=rngs).tokens for m in modules]
        return [*dropped, modules[0].apply(variables, image).tokens]

    unrolled, rolled, plainly = jax.jit(outputs)(variables)
    np.testing.assert_allclose(unrolled, rolled, atol=5e-5)
    assert np.abs(unrolled - plainly).max() > 0.1
