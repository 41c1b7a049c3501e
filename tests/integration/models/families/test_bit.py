# SPDX-License-Identifier: Apache-2.0
"""BiT and ResNet-v2: published sizes, timm's golden, options, initial values, bad configs."""

import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.models.families.test_bit import GOLDEN, NAMES, TABLE, small
from tests.unit.models.sizes import params_and_flops
from vit_jax import models, trees, weights
from vit_jax.models import BiTConfig
from vit_jax.models.conv.conv import Padding
from vit_jax.models.conv.resnet import Norm
from vit_jax.models.layers.init import Init


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count_and_flops(name: str) -> None:
    cfg, row = models.variant(name), TABLE[NAMES[name]]
    assert cfg.image_size == (row["img_size"],) * 2
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=1e-4)


def test_equals_timm() -> None:
    golden = np.load(GOLDEN / "resnetv2_bit.npz")
    kwargs = json.loads(str(golden["spec"]))["kwargs"]
    cfg = BiTConfig(
        image_size=golden["input"].shape[1:3],
        num_classes=kwargs["num_classes"],
        depths=tuple(kwargs["layers"]),
        widths=tuple(kwargs["channels"]),
        stem_width=kwargs["stem_chs"],
        num_groups=kwargs["num_groups"],
        conv_eps=kwargs["conv_eps"],
    )
    variables = weights.from_timm(load_file(GOLDEN / "resnetv2_bit.safetensors"), cfg)

    def forward(image: jax.Array):
        return models.create(cfg).apply(
            variables,
            image,
            mutable=["intermediates"],
            capture_intermediates=lambda module, _: module.name == "norm",
        )

    with jax.default_matmul_precision("highest"):
        out, seen = jax.jit(forward)(jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=5e-5, rtol=0)
    (map_before_relu,) = seen["intermediates"]["norm"]["__call__"]
    np.testing.assert_allclose(
        np.maximum(map_before_relu, 0), golden["features"], atol=5e-5, rtol=0
    )


def forward(cfg: BiTConfig, *, train: bool = False):
    """Return random variables and images, what the model makes of them, and its new state."""
    rng = np.random.default_rng(1)

    def draw(name: str, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        center = 1.0 if name.endswith(("scale", "var")) else 0.0
        spread = 0.1 if leaf.ndim == 1 else 1 / math.sqrt(math.prod(leaf.shape[:-1]))
        return jnp.asarray(rng.normal(center, spread, leaf.shape), jnp.float32)

    variables = trees.map_named(draw, models.abstract(cfg))
    image = rng.normal(size=(3, *models.input_shape(cfg))).astype(np.float32)
    apply = functools.partial(models.create(cfg).apply, train=train, mutable=["batch_stats"])
    out, new = jax.jit(apply)(variables, image)
    return variables, image, out, new


@pytest.mark.parametrize(
    "fields",
    [
        {"width_factor": 2, "channels": 1},
        {"image_size": (1, 70), "padding": Padding.SAME},
        {"norm": Norm.BATCH, "padding": Padding.SYMMETRIC},
        {"dtype": models.DType.BFLOAT16, "remat": models.Remat.DOTS},
    ],
    ids=lambda f: "-".join(f),
)
def test_options_give_the_promised_shapes(fields: dict) -> None:
    cfg = small(**fields)
    variables, _, out, _ = forward(cfg)
    assert out.logits.shape == (3, 5)
    assert out.logits.dtype == out.features.dtype == jnp.float32
    assert out.features.shape == (3, 64 * cfg.width_factor)
    assert out.tokens is None
    assert np.isfinite(out.logits).all()
    assert out.logits.std() > 0
    assert ("batch_stats" in variables) == (cfg.norm is Norm.BATCH)


def test_batch_norm_learns_its_statistics_in_training_only() -> None:
    cfg = small(norm=Norm.BATCH)
    variables, image, evaluated, kept = forward(cfg)
    _, _, trained, updated = forward(cfg, train=True)
    jax.tree.map(np.testing.assert_array_equal, kept["batch_stats"], variables["batch_stats"])
    assert not np.allclose(trained.logits, evaluated.logits)
    # The stem has no norm: the first sees the pooled convolution, whose kernel is as it is.
    first = updated["batch_stats"]["stage0"]["block0"]["norm1"]["mean"]
    kernel = variables["params"]["stem"]["conv"]["kernel"]
    sides = ((3, 3), (3, 3))
    numbers = ("NHWC", "HWIO", "NHWC")
    stem = jax.lax.conv_general_dilated(image, kernel, (2, 2), sides, dimension_numbers=numbers)
    stem = np.pad(stem, ((0, 0), (1, 1), (1, 1), (0, 0)))  # BiT's padding, by zeros
    windows = np.lib.stride_tricks.sliding_window_view(stem, (3, 3), axis=(1, 2))[:, ::2, ::2]
    pooled = windows.max(axis=(-2, -1))
    before = variables["batch_stats"]["stage0"]["block0"]["norm1"]["mean"]
    expected = 0.9 * before + 0.1 * pooled.mean(axis=(0, 1, 2))
    np.testing.assert_allclose(first, expected, atol=1e-5)


@pytest.mark.parametrize("init", [Init.JAX, Init.TIMM])
def test_initial_values(init: Init) -> None:
    cfg = small(init=init, depths=(1,), widths=(64,))
    init_fn = functools.partial(models.init, models.create(cfg), cfg)
    params, _ = jax.jit(init_fn)(jax.random.key(0))
    kernel = params["stage0"]["block0"]["conv2"]["kernel"]  # 3x3, 16 to 16 channels
    assert kernel.shape == (3, 3, 16, 16)
    variance = 1 / (9 * 16) if init is Init.JAX else 2 / (9 * 16)
    assert np.std(kernel) == pytest.approx(math.sqrt(variance), rel=0.05)
    # Flax's lecun_normal cuts at two sigma of what it draws, PyTorch's kaiming_normal nowhere.
    assert (np.abs(kernel).max() < 2.4 * math.sqrt(variance)) == (init is Init.JAX)
    head_std = 1 / math.sqrt(64) if init is Init.JAX else 0.01
    assert np.std(params["head"]["kernel"]) == pytest.approx(head_std, rel=0.1)
    assert not params["head"]["bias"].any()
    for name, leaf in trees.named_leaves(params):
        if name.endswith("scale"):
            np.testing.assert_array_equal(leaf, np.ones_like(leaf))
