# SPDX-License-Identifier: Apache-2.0
"""ResNet: counts, costs, initial values and options; its outputs are tests/parity's."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import RANGE, Told, refused_as
from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.cost.flops import count
from vit_jax.models.families.resnet import ResNetConfig

GOLDEN = Path(__file__).parents[3] / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
NAMES = ("resnet50", "resnet101", "resnet152")


@pytest.mark.parametrize("name", NAMES)
def test_parameters_and_flops(name: str) -> None:
    module, sizes = models.create(models.variant(name)), []

    def run(image: jax.Array) -> jax.Array:  # both of one trace
        out, variables = module.init_with_output(jax.random.key(0), image)
        sizes.append(trees.num_params(variables["params"]))
        return out.logits

    flops = count(run, jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))
    assert sizes == [TABLE[name]["params"]]
    assert flops == pytest.approx(2e9 * TABLE[name]["gmacs"], rel=0.001)


def small(**fields: Any) -> ResNetConfig:
    return dataclasses.replace(TINY["resnet"], **{"zero_init_last": False, **fields})


def forward(cfg: ResNetConfig, *, train: bool = False) -> Any:
    """Return fresh variables, the output of them and the new batch statistics."""
    image = jax.random.normal(jax.random.key(1), (3, *models.input_shape(cfg)))
    return _run(image, jax.random.key(2), cfg, train)


@functools.partial(jax.jit, static_argnums=(2, 3))  # one compilation a config
def _run(image: jax.Array, rng: jax.Array, cfg: ResNetConfig, train: bool) -> Any:
    module = models.create(cfg)
    params, state = models.init(module, cfg, jax.random.key(0))
    variables = {"params": params, **state}
    rngs = {"dropout": rng}
    out, state = module.apply(variables, image, train=train, rngs=rngs, mutable=list(state))
    return variables, out, dict(state)


@pytest.mark.parametrize("zero", [True, False])
def test_initial_values(zero: bool) -> None:
    cfg = small(widths=(128, 256), stem_width=32, zero_init_last=zero, num_classes=40)
    variables, out, _ = forward(cfg)
    params = dict(trees.named_leaves(variables["params"]))
    expected = {
        "stem/conv/kernel": (2 / (49 * 32)) ** 0.5,
        "stage1/block0/conv2/conv/kernel": (2 / (9 * 64)) ** 0.5,
        "stage1/block0/downsample/conv/kernel": (2 / 256) ** 0.5,
        "head/kernel": (1 / (3 * 256)) ** 0.5,
    }
    for name, std in expected.items():
        assert np.std(params[name]) == pytest.approx(std, rel=0.05), name
    assert np.abs(params["head/kernel"]).max() <= 1 / 16
    for name, value in params.items():
        if name.endswith("scale"):
            last = 0 if zero and "/conv3/" in name else 1
            np.testing.assert_array_equal(value, last, err_msg=name)
    assert out.logits.shape == (3, 40)
    assert out.features.shape == (3, 256)
    assert out.tokens is None


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"depths": (1,)}, r"model.depths=\(1,\) and model.widths=\(16, 32\)"),
        ({"depths": (), "widths": ()}, r"need a number for each stage"),
        ({"depths": (1, 0)}, (RANGE, "model.depths")),
        ({"widths": (16, 30)}, r"model.widths=\(16, 30\) must be multiples of 4"),
        ({"stem_width": 0}, (RANGE, "model.stem_width")),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
    ],
    ids=lambda x: "-".join(x) if isinstance(x, dict) else "",
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))
