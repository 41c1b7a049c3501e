# SPDX-License-Identifier: Apache-2.0
"""CaiT: published sizes, timm's golden, initial values, randomness, impossible configs."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.models.families.test_cait import small
from tests.unit.models.sizes import params_and_flops
from vit_jax import models, trees, weights
from vit_jax.models import CaiTConfig

GOLDEN = Path(__file__).parents[3] / "golden"
TOLERANCE = 5e-5  # float32 noise is below 7e-6, swapped talking heads are 2
PUBLISHED = {
    name: row
    for name, row in json.loads((GOLDEN / "param_counts.json").read_text()).items()
    if name.startswith("cait_")
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_size(name: str) -> None:
    row, cfg = PUBLISHED[name], models.variant(name)
    assert models.pair(cfg.image_size, "image_size") == (row["img_size"], row["img_size"])
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=0.01)


def test_plain_names_are_the_published_networks() -> None:
    sides = {name: cfg.image_size[0] for name, cfg in models.VARIANTS.items() if "cait_" in name}
    assert len(sides) == 10
    assert {name for name, side in sides.items() if side == 384} == {
        "cait_xs24",
        "cait_s36",
        "cait_m36",
    }
    assert sides["cait_m48"] == 448
    # What timm has not: depth and width by arithmetic, initial LayerScale by the paper.
    params = trees.num_params(models.abstract(models.variant("cait_m24"))["params"])
    deeper = trees.num_params(models.abstract(models.variant("cait_m36_224"))["params"])
    dim = 768
    block = 12 * dim**2 + 9 * dim + 4 * dim + 2 * dim + 2 * (16**2 + 16)
    assert deeper - params == 12 * block
    scales = {name: models.variant(f"cait_{name}").layer_scale for name in ("xs36", "s48", "m24")}
    assert scales == {"xs36": 1e-6, "s48": 1e-6, "m24": 1e-5}


def golden(name: str = "cait") -> tuple[CaiTConfig, dict[str, np.ndarray], Any]:
    arrays = np.load(GOLDEN / f"{name}.npz")
    kwargs = json.loads(str(arrays["spec"]))["kwargs"]
    cfg = CaiTConfig(
        image_size=(kwargs["img_size"],),
        patch=(kwargs["patch_size"],),
        num_classes=kwargs["num_classes"],
        dim=kwargs["embed_dim"],
        depth=kwargs["depth"],
        num_heads=kwargs["num_heads"],
        mlp_dim=4 * kwargs["embed_dim"],
        token_depth=kwargs["depth_token_only"],
        token_mlp_dim=4 * kwargs["embed_dim"],
        layer_scale=kwargs["init_values"],
    )
    return cfg, load_file(GOLDEN / f"{name}.safetensors"), arrays


@pytest.mark.parametrize("scan_unroll", [0, 1])
def test_equals_timm(scan_unroll: int) -> None:
    cfg, state, arrays = golden()
    cfg.scan_unroll = scan_unroll
    apply, image = models.create(cfg).apply, jnp.asarray(arrays["input"])
    with jax.default_matmul_precision("highest"):
        out = jax.jit(apply)(weights.from_timm(state, cfg), image)
    np.testing.assert_allclose(out.logits, arrays["logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.features, arrays["pre_logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.tokens, arrays["features"], atol=TOLERANCE, rtol=0)


def test_imports_what_no_logit_shows() -> None:
    # A softmax takes away what is equal for all keys: these biases change no output.
    cfg, state, _ = golden()
    params = weights.from_timm(state, cfg)["params"]
    for i in range(2):
        mixed = params["blocks"]["attn"]["proj_l"]["bias"][i]
        np.testing.assert_array_equal(mixed, state[f"blocks.{i}.attn.proj_l.bias"])
        qkv = params["blocks"]["attn"]["qkv"]["bias"][i].reshape(cfg.num_heads, 3, -1)
        k = state[f"blocks.{i}.attn.qkv.bias"].reshape(3, cfg.num_heads, -1)[1]
        np.testing.assert_array_equal(qkv[:, 1], k)
        k = params["token_blocks"]["attn"]["k"]["bias"][i]
        np.testing.assert_array_equal(k, state[f"blocks_token_only.{i}.attn.k.bias"])


def variables(cfg: CaiTConfig) -> dict[str, Any]:
    module = models.create(cfg)
    return {"params": jax.jit(lambda key: models.init(module, cfg, key)[0])(jax.random.key(0))}


def run(cfg: CaiTConfig, tree: dict[str, Any], *, train: bool = False) -> models.Output:
    image = np.random.default_rng(0).normal(size=(3, *models.input_shape(cfg)))
    rngs = {"dropout": jax.random.key(1)}
    apply = jax.jit(models.create(cfg).apply, static_argnames="train")
    return apply(tree, image.astype(np.float32), train=train, rngs=rngs)


def test_initial_values() -> None:
    params = variables(small(dim=96, num_heads=12, depth=8, layer_scale=0.03))["params"]
    for stack, projections in (
        ("blocks", "qkv proj proj_l proj_w"),
        ("token_blocks", "q k v proj"),
    ):
        for name in projections.split():
            projection = params[stack]["attn"][name]
            assert np.std(projection["kernel"]) == pytest.approx(0.02, rel=0.06), (stack, name)
            assert abs(np.mean(projection["kernel"])) < 0.002
            assert not projection["bias"].any()
        for scale in ("ls1", "ls2"):
            assert np.unique(params[stack][scale]["gamma"]) == np.float32(0.03)
    for name in ("cls_token", "pos_embed"):
        assert np.std(params[name]) == pytest.approx(0.02, rel=0.2)
    assert params["pos_embed"].shape == (1, 6, 96)  # no position for the class token


def without_patch_blocks(tree: dict[str, Any]) -> dict[str, Any]:
    """Set the LayerScale of all blocks among patches to zero."""
    return trees.map_named(
        lambda name, x: x * 0 if "/blocks/ls" in name else x, {"params": tree["params"]}
    )


def test_drop_path_is_constant_and_spares_class_attention() -> None:
    cfg = small(layer_scale=1.0)
    tree = variables(cfg)
    dropped = run(dataclasses.replace(cfg, drop_path_rate=0.99999), tree, train=True)
    expected = run(cfg, without_patch_blocks(tree))
    np.testing.assert_allclose(dropped.tokens, expected.tokens, atol=1e-6)


def test_class_attention_drops_nothing() -> None:
    # Embedded patches of zero and blocks that add nothing leave all dropout without effect, but
    # for what the class-attention blocks would have.
    cfg = small(layer_scale=1.0)
    tree = without_patch_blocks(variables(cfg))
    zero = trees.map_named(lambda n, x: x * 0 if "embed" in n else x, tree)
    rates = {"dropout_rate": 0.5, "attention_dropout_rate": 0.5}
    dropped = run(dataclasses.replace(cfg, **rates), zero, train=True)
    np.testing.assert_array_equal(dropped.logits, run(cfg, zero).logits)
    assert np.ptp(dropped.logits) > 0
