# SPDX-License-Identifier: Apache-2.0
"""What layers return, of every family; the numbers are compared with timm's in tests/parity."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.models.intermediates import Layer, layer_outputs, num_layers

# By family: what its layers return of one image, as patches, and the tokens before them.
SHAPES = {
    "vit": ([(2, 2, 16)] * 2, [1, 1]),
    "deit": ([(2, 2, 16)] * 2, [2, 2]),
    "cait": ([(2, 2, 16)] * 2, [0, 0]),
    "convit": ([(2, 2, 16)] * 2, [0, 1]),
    "mixer": ([(2, 2, 16)] * 2, [0, 0]),
    "hybrid": ([(2, 2, 16)] * 2, [1, 1]),
    "swin": ([(5, 5, 8), (3, 3, 16)], [0, 0]),
    "convnext": ([(4, 4, 8), (2, 2, 16)], [0, 0]),
    "hiera": ([(4, 4, 8), (2, 2, 16)], [0, 0]),
    "resnet": ([(8, 8, 8), (4, 4, 16), (2, 2, 32)], [0, 0, 0]),
    "regnet": ([(8, 8, 8), (4, 4, 8), (2, 2, 16)], [0, 0, 0]),
    "bit": ([(16, 16, 8), (8, 8, 16), (4, 4, 32)], [0, 0, 0]),
}


def shapes(cfg: models.ModelConfig, **options: Any) -> list[Layer]:
    """Return the shapes of the layers of a batch of two."""
    image = jax.ShapeDtypeStruct((2, *models.input_shape(cfg)), np.float32)
    run = lambda v, x: layer_outputs(cfg, v, x, **options)  # noqa: E731
    return jax.eval_shape(run, models.abstract(cfg), image)


@pytest.mark.parametrize("family", TINY)
def test_layers_of_every_family(family: str) -> None:
    patches, prefix = SHAPES[family]
    found = shapes(TINY[family])
    assert [layer.patches.shape for layer in found] == [(2, *shape) for shape in patches]
    assert [layer.prefix.shape[1] for layer in found] == prefix
    assert num_layers(TINY[family]) == len(patches)
    last, first = shapes(TINY[family], layers=[-1, 0], norm=None)
    assert (last.patches.shape, first.patches.shape) == ((2, *patches[-1]), (2, *patches[0]))


@pytest.mark.parametrize("family", ["resnet", "regnet", "hiera"])
def test_a_norm_that_is_not_there_is_refused(family: str) -> None:
    with pytest.raises(UserError, match="has no norm between its last layer and the pool"):
        shapes(TINY[family], norm=True)


def test_merged_tokens_are_refused() -> None:
    merging: Any = dataclasses.replace(TINY["vit"], token_merging=1)
    with pytest.raises(UserError, match=r"lie in no grid of patches; set model\.token_merging=0"):
        shapes(merging)


@pytest.mark.parametrize("unroll", [0, 1])
def test_a_layer_costs_no_more_than_a_pass(unroll: int) -> None:
    cfg: Any = dataclasses.replace(TINY["vit"], depth=6, scan_unroll=unroll)
    module: Any = models.create(cfg)
    variables = models.abstract(cfg)
    image = jax.ShapeDtypeStruct((8, *models.input_shape(cfg)), np.float32)

    def flops(run: Callable[[Any, Any], Any]) -> float:
        cost: Any = jax.jit(run).lower(variables, image).compile().cost_analysis()
        return cost["flops"]

    whole = flops(lambda v, x: module.apply(v, x).tokens)
    last, two, first = (
        flops(lambda v, x, layers=layers: layer_outputs(cfg, v, x, layers))
        for layers in ([-1], [2, -1], [0])
    )
    assert last <= two <= whole
    if not unroll:  # the blocks after it are left out
        assert first < 0.4 * whole
