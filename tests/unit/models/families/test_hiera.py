# SPDX-License-Identifier: Apache-2.0
"""Hiera: the order of tokens in mask units, authors' names, shardings, bad configs."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from safetensors.numpy import load_file, save_file

from tests.refusals import RANGE, Told, refused_as
from vit_jax import models, trees, weights
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.models import HieraConfig
from vit_jax.models.families import hiera

GOLDEN = Path(__file__).parents[3] / "golden"


def small(**fields: object) -> HieraConfig:
    base = {"image_size": (16, 24), "num_classes": 5, "dim": 8, "local_stages": 1}
    return HieraConfig(**{**base, "depths": (1, 2), "num_heads": (2, 4), **fields})


def test_each_four_tokens_of_a_pool_are_two_by_two() -> None:
    rows, columns = 8, 16
    places = np.stack(np.mgrid[:rows, :columns], axis=-1)[None].astype(np.float32)
    units = hiera.to_units(jnp.asarray(places), 3)
    assert units.shape == (1, 2, 64, 2)
    np.testing.assert_array_equal(hiera.to_map(units, (rows, columns)), places)
    np.testing.assert_array_equal(units[0, 1].min(axis=0), [0, 8])  # the unit to the right
    tokens, side = units, 1
    for _ in range(3):
        tokens, side = hiera._pooled(tokens), 2 * side
        left = (rows // side, columns // side)
        expected = places[:, side - 1 :: side, side - 1 :: side]  # of each square the last place
        np.testing.assert_array_equal(hiera.to_map(tokens, left), expected)


def test_one_of_four_equal_numbers_gets_the_gradient() -> None:
    x = jnp.asarray([[1.0, 2.0, 2.0, 0.0], [3.0, 3.0, 3.0, 3.0], [0.0, 1.0, -1.0, 5.0]])[..., None]
    (gradient,) = jax.vjp(hiera.largest, x[..., None])[1](jnp.full((3, 1, 1), 7.0))
    expected = [[0, 7, 0, 0], [7, 0, 0, 0], [0, 0, 0, 7]]
    np.testing.assert_array_equal(gradient[..., 0, 0], expected)
    np.testing.assert_array_equal(hiera.largest(x[..., None]), x.max(axis=1)[..., None])


def test_authors_own_names(tmp_path: Path) -> None:
    sizes = {"image_size": (32, 64), "dim": 4, "depths": (1, 2, 1, 1), "num_classes": 5}
    cfg = models.variant("hiera_t", **sizes)
    state = load_file(GOLDEN / "hiera.safetensors")
    names = {"head.fc.": "head.projection.", "head.norm.": "norm."}
    theirs = {}
    for key, value in state.items():
        for ours, own in names.items():
            key = key.replace(ours, own)
        theirs[f"model_state.{key}"] = value
    save_file(theirs, tmp_path / "x.safetensors")
    found = dict(trees.named_leaves(weights.load(f"timm:{tmp_path / 'x.safetensors'}", cfg)))
    variables = weights.from_timm(state, cfg)
    for name, value in trees.named_leaves(variables):
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    back = weights.to_timm(variables, cfg)
    assert back.keys() == state.keys()
    for key, value in state.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)


def test_heads_that_do_not_double_are_no_timms() -> None:
    cfg = small(num_heads=(2, 2))
    with pytest.raises(UserError, match=r"num_heads=\(2, 2\): its heads double with the width"):
        weights.to_timm({}, cfg)


def test_shardings() -> None:
    sizes = {"data": 1, "fsdp": 2, "tensor": 2}
    split = sharding.spec("stage1/block0/expand/kernel", (96, 192), sizes)
    assert split == PartitionSpec("fsdp", None)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (16, 20)}, r"no multiple of a mask unit's 8 pixels; .* is \(16, 16\)"),
        ({"num_heads": (2, 5)}, r"5 does not divide the width of stage 1, model.dim=8 \* 2"),
        ({"num_heads": (2,)}, r"one number for each stage"),
        ({"depths": (), "num_heads": ()}, r"one number for each stage"),
        ({"depths": (2, 0)}, (RANGE, "model.depths")),
        ({"local_stages": 3}, r"local_stages=3 is more than 2 stages"),
        ({"stem_kernel": 4}, r"stem_kernel=4 must be odd"),
        ({"stem_kernel": 3}, r"no smaller than model.stem_stride=4"),
        ({"global_grid": (1, 2, 3)}, r"model.global_grid=\(1, 2, 3\)"),
        ({"mlp_ratio": 0.05}, "mlp_ratio=0.05"),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))
