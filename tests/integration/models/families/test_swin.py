# SPDX-License-Identifier: Apache-2.0
"""Swin: published sizes, timm's golden, window tables, options, initial values, bad configs."""

import json
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec
from safetensors.numpy import load_file

from tests.integration.models.families.test_mixer import forward, random_params
from tests.unit.models.families.test_swin import GOLDEN, NAMES, TABLE, small
from tests.unit.models.sizes import params_and_flops
from vit_jax import models, weights
from vit_jax.devices import sharding
from vit_jax.models import SwinConfig
from vit_jax.models.families import swin
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.window import relative_bias, shift_mask


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count_and_flops(name: str) -> None:
    cfg, row = models.variant(name), TABLE[NAMES[name]]
    assert cfg.image_size == (row["img_size"],) * 2
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=1e-3)


def test_equals_timm() -> None:
    golden = np.load(GOLDEN / "swin.npz")
    kwargs = json.loads(str(golden["spec"]))["kwargs"]
    cfg = SwinConfig(
        image_size=(kwargs["img_size"],),
        patch=(kwargs["patch_size"],),
        num_classes=kwargs["num_classes"],
        dim=kwargs["embed_dim"],
        depths=tuple(kwargs["depths"]),
        num_heads=tuple(kwargs["num_heads"]),
        window=(kwargs["window_size"],),
    )
    variables = weights.from_timm(load_file(GOLDEN / "swin.safetensors"), cfg)
    apply = models.create(cfg).apply
    with jax.default_matmul_precision("highest"):
        out = jax.jit(apply)(variables, jnp.asarray(golden["input"]))
    tokens = golden["features"].reshape(out.tokens.shape)
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=5e-5, rtol=0)
    # One token is nearly constant before its norm: float32 leaves 3e-5 of it here, 1e-5 in torch.
    np.testing.assert_allclose(out.tokens, tokens, atol=1e-4, rtol=0)


def test_window_tables_equal_the_authors() -> None:
    table = np.load(GOLDEN / "swin_tables.npz")
    for window in ((4, 4), (3, 4)):
        expected = table[f"swin_index|win={window[0]}x{window[1]}"]
        offsets = (2 * window[0] - 1) * (2 * window[1] - 1)
        rows = jnp.arange(offsets, dtype=jnp.float32)[:, None] + jnp.asarray([[0.0, 1000.0]])
        np.testing.assert_array_equal(relative_bias(rows, window)[0], expected)
        np.testing.assert_array_equal(relative_bias(rows, window)[1], expected + 1000)
    mask = shift_mask((8, 8), (4, 4), (2, 2))
    np.testing.assert_array_equal(mask, table["swin_mask|hw=8x8,win=4x4,shift=2x2"])
    assert mask.dtype == np.float32


@pytest.mark.parametrize(
    "fields, num_tokens",
    [
        ({"dtype": models.DType.BFLOAT16, "remat": models.Remat.DOTS}, 3 * 4),
        ({"window": (2, 4), "qkv_bias": False, "depths": (1, 1, 1), "num_heads": (1, 2, 3)}, 2 * 2),
    ],
    ids=lambda f: "-".join(f) if isinstance(f, dict) else "",
)
def test_options_give_the_promised_shapes(fields: dict, num_tokens: int) -> None:
    cfg = small(**fields)
    params = random_params(cfg)
    out = forward(cfg, params)
    width = cfg.dim * 2 ** (len(cfg.depths) - 1)
    assert out.logits.shape == (3, 5)
    assert out.logits.dtype == out.features.dtype == jnp.float32
    assert out.features.shape == (3, width)
    assert out.tokens.shape == (3, num_tokens, width)
    assert out.tokens.dtype == jnp.dtype(cfg.dtype.value)
    assert np.isfinite(out.logits).all()
    assert {x.dtype for x in jax.tree.leaves(models.abstract(cfg))} == {jnp.dtype("float32")}
    assert ("bias" in params["stage0"]["block0"]["attn"]["qkv"]) == cfg.qkv_bias


def test_both_branches_drop() -> None:
    cfg = small(
        depths=(1,), num_heads=(2,), drop_path_rate=0.999, drop_path_rule=DropPathRule.CONSTANT
    )
    params = random_params(cfg)
    dropped = forward(cfg, params, train=True)
    block = params["stage0"]["block0"]
    for branch, last in (("attn", "proj"), ("mlp", "fc2")):
        block[branch][last] = jax.tree.map(np.zeros_like, block[branch][last])
    np.testing.assert_allclose(dropped.tokens, forward(cfg, params).tokens, atol=1e-5)


def blocks(cfg: SwinConfig) -> list[swin.SwinBlock]:
    """Return the blocks that a forward pass calls, in order."""
    called = []

    def note(call: Any, args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        if isinstance(context.module, swin.SwinBlock) and context.method_name == "__call__":
            called.append(context.module)
        return call(*args, **kwargs)

    with nn.intercept_methods(note):
        models.abstract(cfg)
    return called


def test_blocks_of_a_searched_network() -> None:
    found = blocks(models.variant("swin_s3_t", drop_path_rate=0.2))
    assert [block.window[0] for block in found] == [7] * 4 + [14] * 6 + [7] * 2
    assert [block.num_heads for block in found] == [3] * 2 + [6] * 2 + [12] * 6 + [24] * 2
    assert [block.shifted for block in found] == [False, True] * 6
    # The rate grows over all stages, not within each.
    np.testing.assert_allclose([b.drop_path_rate for b in found], np.linspace(0, 0.2, 12))
    found = blocks(small(drop_path_rate=0.2, drop_path_rule=DropPathRule.CONSTANT))
    np.testing.assert_allclose([b.drop_path_rate for b in found], [0.2] * 3)


def test_initial_values() -> None:
    assert SwinConfig().init is Init.TIMM
    cfg = small(init=Init.JAX, dim=48, depths=(1, 1), window=(7, 5), zero_head=True)
    init = jax.jit(lambda key: models.init(models.create(cfg), cfg, key)[0])
    params = init(jax.random.key(0))
    reduction = params["stage1"]["merge"]["reduction"]
    assert set(reduction) == {"kernel"}
    # Xavier uniform of 4 D -> 2 D; lecun normal of the patch.
    assert np.std(reduction["kernel"]) == pytest.approx(math.sqrt(2 / (6 * 48)), rel=0.03)
    patch = np.std(params["patch_embed"]["kernel"])
    assert patch == pytest.approx(1 / math.sqrt(4 * 4 * 3), rel=0.05)
    table = params["stage0"]["block0"]["attn"]["rel_pos_bias"]
    assert table.shape == ((2 * 5 - 1) * (2 * 5 - 1), 2)  # of the window fitted to 5 x 7 tokens
    assert np.std(table) == pytest.approx(0.02, rel=0.15)
    assert not params["head"]["kernel"].any()


def test_shardings() -> None:
    sizes = {"data": 1, "fsdp": 2, "tensor": 2}
    split = sharding.spec("stage1/merge/reduction/kernel", (384, 192), sizes)
    assert split == PartitionSpec("fsdp", None)
    whole = sharding.spec("stage1/block0/attn/rel_pos_bias", (169, 6), sizes)
    assert whole == PartitionSpec()
