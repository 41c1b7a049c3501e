# SPDX-License-Identifier: Apache-2.0
"""Hybrids: published sizes, timm's golden, grids, options, initial values, bad configs."""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.refusals import RANGE, Told, refused_as, refused_by
from tests.unit.models.families.test_hybrid import GOLDEN, ROWS, TABLE
from tests.unit.models.sizes import params_and_flops
from vit_jax import models, trees, weights
from vit_jax.errors import UserError
from vit_jax.models import HybridConfig
from vit_jax.models.families import hybrid
from vit_jax.models.families.hybrid import Standardise, token_grid
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool


@pytest.mark.parametrize("name", ROWS)
def test_parameter_count_and_flops(name: str) -> None:
    cfg, row = models.variant(name, scan_unroll=1), TABLE[ROWS[name]]
    assert cfg.image_size == (row["img_size"],) * 2
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=1e-3)


def golden_config(**fields: object) -> HybridConfig:
    kwargs = json.loads(str(np.load(GOLDEN / "hybrid_r.npz")["spec"]))["kwargs"]
    backbone = kwargs["backbone"]
    base = HybridConfig(
        image_size=(kwargs["img_size"],),
        patch=(kwargs["patch_size"],),
        num_classes=kwargs["num_classes"],
        dim=kwargs["embed_dim"],
        depth=kwargs["depth"],
        num_heads=kwargs["num_heads"],
        mlp_dim=4 * kwargs["embed_dim"],
        backbone_depths=tuple(backbone["layers"]),
        backbone_widths=tuple(backbone["channels"]),
        stem_width=backbone["stem_chs"],
        num_groups=backbone["num_groups"],
        group_norm_eps=1e-5,
        weight_std=Standardise.TIMM,
        gelu=Gelu.ERF,
    )
    return dataclasses.replace(base, **fields)


def golden_output(cfg: HybridConfig) -> models.Output:
    variables = weights.from_timm(load_file(GOLDEN / "hybrid_r.safetensors"), cfg)
    apply = models.create(cfg).apply
    image = jnp.asarray(np.load(GOLDEN / "hybrid_r.npz")["input"])
    with jax.default_matmul_precision("highest"):
        return jax.jit(apply)(variables, image)


@pytest.mark.parametrize("scan_unroll", [0, 1])
def test_equals_timm(scan_unroll: int) -> None:
    golden = np.load(GOLDEN / "hybrid_r.npz")
    out = golden_output(golden_config(scan_unroll=scan_unroll))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.tokens, golden["features"], atol=5e-5, rtol=0)


def test_standardisation_of_google_shows_in_the_logits() -> None:
    golden = np.load(GOLDEN / "hybrid_r.npz")["logits"]
    out = golden_output(golden_config(weight_std=Standardise.GOOGLE))
    assert 1e-4 < np.abs(out.logits - golden).max() < 0.1


def small(**fields: object) -> HybridConfig:
    base = {
        "image_size": (13, 24),
        "num_classes": 5,
        "dim": 16,
        "depth": 1,
        "num_heads": 2,
        "mlp_dim": 32,
        "backbone_depths": (1, 1),
        "backbone_widths": (32, 48),
        "stem_width": 8,
        "num_groups": 4,
        "zero_head": False,
    }
    return HybridConfig(**{**base, **fields})


def forward(
    cfg: HybridConfig, *, size: tuple[int, int] | None = None, train: bool = False
) -> models.Output:
    """Apply a model to random images with random variables."""
    rng = np.random.default_rng(1)

    def draw(name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        center = 1.0 if name.endswith("scale") else 0.0
        return jnp.asarray(rng.normal(center, 0.1, leaf.shape), jnp.float32)

    variables = trees.map_named(draw, models.abstract(cfg))
    shape = (3, *(size or models.input_shape(cfg)[:2]), cfg.channels)
    image = rng.normal(size=shape).astype(np.float32)
    apply = functools.partial(models.create(cfg).apply, train=train)
    return jax.jit(apply)(variables, image, rngs={"dropout": jax.random.key(2)})


@pytest.mark.parametrize(
    "depths, patch, image_size, grid",
    [
        ((), 8, (224, 224), (7, 7)),  # R+Ti/16
        ((2, 2, 2, 2), 1, (224, 384), (7, 12)),
        ((3, 4, 9), 1, (224, 224), (14, 14)),
        ((1, 1), 1, (13, 24), (2, 3)),  # stride 8, rounded up
        ((1,), 2, (13, 25), None),  # 4x7 of stride 4
    ],
)
def test_token_grid(depths: tuple, patch: int, image_size: tuple, grid: tuple | None) -> None:
    widths = (32, 64, 128, 256)[: len(depths)]
    cfg = small(backbone_depths=depths, backbone_widths=widths, patch=(patch,))
    if grid is None:
        with pytest.raises(UserError, match=r"the 4x7 map .* multiples of \(8, 8\)"):
            token_grid(cfg, image_size)
        return
    assert token_grid(cfg, image_size) == grid
    cfg.image_size = image_size
    length = models.abstract(cfg)["params"]["pos_embed"].shape[1]
    assert length == 1 + grid[0] * grid[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"pool": Pool.GAP, "class_token": False, "backbone_depths": (), "backbone_widths": ()},
        {"distilled": True, "num_registers": 2},
        {"dtype": models.DType.BFLOAT16, "remat": models.Remat.FULL},
    ],
    ids=lambda f: "-".join(f),
)
def test_options_give_the_promised_shapes(fields: dict) -> None:
    cfg = small(**fields)
    out = forward(cfg)
    rows, columns = token_grid(cfg, (13, 24))
    prefix = int(cfg.class_token) + int(cfg.distilled) + cfg.num_registers
    assert out.logits.shape == (3, 5)
    assert out.logits.dtype == out.features.dtype == jnp.float32
    assert out.tokens.shape == (3, prefix + rows * columns, 16)
    assert np.isfinite(out.logits).all()


def test_other_sizes_of_image() -> None:
    out = forward(small(dynamic_image_size=True), size=(33, 16))
    assert out.tokens.shape == (3, 1 + 5 * 2, 16)
    # The table's own grid is that of `image_size`.
    with pytest.raises(UserError, match="the 9x4 map"):
        forward(small(dynamic_image_size=True, patch=(2, 1), image_size=(16, 16)), size=(66, 32))
    with refused_by("models.base.check_input"):
        forward(small(), size=(33, 16))


@pytest.mark.parametrize("init", [Init.JAX, Init.TIMM])
def test_residual_branches_of_the_resnet_start_at_zero(init: Init) -> None:
    cfg = small(init=init, backbone_depths=(1,), backbone_widths=(32,))
    backbone = hybrid.Backbone(cfg)
    image = jnp.zeros((1, *models.input_shape(cfg)))
    params = jax.jit(backbone.init)(jax.random.key(0), image)["params"]
    for name, leaf in trees.named_leaves(params):
        if name.endswith("scale"):
            start = 0 if "norm3" in name else 1
            np.testing.assert_array_equal(leaf, np.full_like(leaf, start), err_msg=name)
        elif name.endswith("bias"):
            assert not leaf.any(), name
    kernel = params["stem"]["conv"]["kernel"]  # 7x7, 3 to 8 channels
    variance = 1 / (49 * 3) if init is Init.JAX else 2 / (49 * 8)
    assert np.std(kernel) == pytest.approx(np.sqrt(variance), rel=0.08)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"backbone_depths": (1,)}, "a number for each stage"),
        ({"backbone_depths": (1, 0)}, (RANGE, "model.backbone_depths")),
        ({"num_groups": 16}, r"num_groups=16 does not divide the channels \[8\]"),
        ({"stem_width": -8}, (RANGE, "model.stem_width")),
        ({"patch": (4, 1)}, r"patch=\(4, 1\) does not divide the 2x3 map"),
        ({"num_heads": 3}, ("models.base.check_heads", "model.num_heads")),
        ({"image_size": (0,)}, ("models.base.pair", "model.image_size")),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))
