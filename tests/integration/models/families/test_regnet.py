# SPDX-License-Identifier: Apache-2.0
"""RegNetY: widths, counts, costs, timm's outputs, initial values and options."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.models.families.test_regnet import GOLDEN, PUBLISHED, TABLE, small
from vit_jax import models, trees, weights
from vit_jax.cost.flops import count
from vit_jax.devices import hardware
from vit_jax.models.families.regnet import RegNetConfig


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_flops(name: str) -> None:
    row = TABLE[f"regnety_{PUBLISHED[name][0]}"]
    module, sizes = models.create(models.variant(f"regnety_{name}")), []

    def run(image: jax.Array) -> jax.Array:  # both of one trace
        out, variables = module.init_with_output(jax.random.key(0), image)
        sizes.append(trees.num_params(variables["params"]))
        return out.logits

    image = jax.ShapeDtypeStruct((1, row["img_size"], row["img_size"], 3), jnp.float32)
    # On a CPU a grouped convolution is one for each group, up to 63: traced as on a GPU instead.
    with hardware.tracing_for(hardware.Target("gpu")):
        flops = count(run, image)
    assert sizes == [row["params"]]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=0.001)


def test_equals_timm() -> None:
    golden = np.load(GOLDEN / "regnety.npz")
    spec = json.loads(str(golden["spec"]))
    fields = spec["kwargs"]["cfg"]
    cfg = RegNetConfig(
        **{"group_width": fields.pop("group_size"), **fields},
        num_classes=spec["kwargs"]["num_classes"],
        image_size=tuple(spec["input_hw"]),
    )
    variables = weights.from_timm(load_file(GOLDEN / "regnety.safetensors"), cfg)
    forward = models.create(cfg).apply
    with jax.default_matmul_precision("highest"):
        out = jax.jit(forward)(variables, jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=5e-5, rtol=0)
    assert out.tokens is None


def forward(
    cfg: RegNetConfig, *, train: bool = False, dropout_seed: int = 2
) -> tuple[dict[str, Any], models.Output, dict[str, Any]]:
    """Return fresh variables, the output of them and the new batch statistics."""
    image = np.random.default_rng(1).normal(size=(3, *models.input_shape(cfg))).astype(np.float32)
    return _run(image, jax.random.key(dropout_seed), cfg, train)


@functools.partial(jax.jit, static_argnums=(2, 3))  # one compilation a config
def _run(image: jax.Array, rng: jax.Array, cfg: RegNetConfig, train: bool) -> Any:
    module = models.create(cfg)
    params, state = models.init(module, cfg, jax.random.key(0))
    variables = {"params": params, **state}
    rngs = {"dropout": rng}
    out, state = module.apply(variables, image, train=train, rngs=rngs, mutable=list(state))
    return variables, out, dict(state)


@pytest.mark.parametrize(
    "fields",
    [
        {"image_size": (33, 18), "stem_width": 5, "channels": 1},
        {"se_ratio": 0.0, "group_width": 16},
        {"w0": 16, "wa": 0.0, "depth": 3},
    ],
    ids=lambda f: "-".join(f),
)
def test_options_give_the_promised_shapes(fields: dict) -> None:
    cfg = small(**fields)
    variables, out, _ = forward(cfg)
    assert out.logits.shape == (3, 3)
    assert out.logits.dtype == out.features.dtype == jnp.float32
    assert out.features.shape == (3, 16)
    assert np.isfinite(out.logits).all()
    names = [name for name, _ in trees.named_leaves(variables["params"])]
    assert any("/se/" in name for name in names) == (cfg.se_ratio > 0)


def test_drop_path_runs_from_nothing_to_the_rate() -> None:
    # The first block is never dropped: a network of it alone draws nothing.
    cfg = small(drop_path_rate=0.5, depth=1)
    first, second = (forward(cfg, train=True, dropout_seed=seed)[1] for seed in (2, 3))
    np.testing.assert_array_equal(first.logits, second.logits)


def test_initial_values() -> None:
    cfg = small(w0=64, wa=64.0, stem_width=48, group_width=16, num_classes=40)
    variables, _, _ = forward(cfg)
    params = dict(trees.named_leaves(variables["params"]))
    expected = {
        "stem/conv/kernel": (2 / (9 * 48)) ** 0.5,
        "stage1/block0/conv1/conv/kernel": (2 / 128) ** 0.5,
        "stage1/block0/conv2/conv/kernel": (2 / (9 * 16)) ** 0.5,
        "stage1/block0/downsample/conv/kernel": (2 / 128) ** 0.5,
        "stage1/block0/se/fc1/kernel": (2 / 16) ** 0.5,
        "stage1/block0/se/fc2/kernel": (2 / 128) ** 0.5,
        "head/kernel": 0.01,
    }
    for name, std in expected.items():
        assert np.std(params[name]) == pytest.approx(std, rel=0.05), name
    for name, value in params.items():
        if name.endswith(("scale", "bias")):
            np.testing.assert_array_equal(value, int(name.endswith("scale")), err_msg=name)


def test_a_block_can_start_as_its_shortcut() -> None:
    variables, _, _ = forward(small(zero_init_last=True))
    scales = {
        name: value
        for name, value in trees.named_leaves(variables["params"])
        if name.endswith("scale")
    }
    zero = {name for name, value in scales.items() if not value.any()}
    assert zero == {name for name in scales if "/conv3/" in name}
    assert len(zero) == 2


def test_a_head_can_start_at_zero_and_at_its_bias() -> None:
    _, out, _ = forward(small(zero_head=True, head_bias=-3.0))
    np.testing.assert_array_equal(out.logits, -3.0)
