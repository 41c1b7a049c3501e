# SPDX-License-Identifier: Apache-2.0
"""Angles of rotary positions against their formulas, and what a rotation keeps."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import Told, refused_as
from vit_jax import models
from vit_jax.models.layers import rope
from vit_jax.models.layers.rope import Rope, RopeOrder, Rotation


def rotation(kind: Rope = Rope.LANG, **fields: Any) -> Rotation:
    plain = {"theta": 100.0, "order": RopeOrder.IJ, "offset": 0.0, "grid": (2, 3)}
    return Rotation(kind=kind, **{**plain, **fields})


def test_rows_and_then_columns_turn_at_falling_frequencies() -> None:
    angles = rope.fixed_angles(rotation(), 8)  # two frequencies, 1 and 1/10
    np.testing.assert_allclose(angles[1 * 3 + 2], [1, 0.1, 2, 0.2])


def test_columns_come_first_where_they_should() -> None:
    angles = rope.fixed_angles(rotation(order=RopeOrder.XY), 8)
    np.testing.assert_allclose(angles[1 * 3 + 2], [2, 0.2, 1, 0.1])


def test_places_have_an_offset_and_are_scaled_by_axis() -> None:
    found = rope.places(rotation(offset=1.0, reference=(4, 6), order=RopeOrder.XY))
    np.testing.assert_allclose(found[1 * 3 + 2], [3 / 3 * 6, 2 / 2 * 4])


def test_dinov3_lays_every_image_between_minus_one_and_one() -> None:
    angles = rope.fixed_angles(rotation(Rope.DINOV3), 8)
    row, column = 2 * (1 + 0.5) / 2 - 1, 2 * (0 + 0.5) / 3 - 1
    expected = 2 * np.pi * np.array([row, row / 10, column, column / 10])
    np.testing.assert_allclose(angles[1 * 3 + 0], expected)


def test_a_class_token_stays_and_registers_are_a_square() -> None:
    whole = rotation(theta=10_000.0, unturned=1, registers=4)
    angles = rope.fixed_angles(whole, 8)
    assert angles.shape == (1 + 4 + 6, 4)
    assert not angles[0].any()
    np.testing.assert_allclose(angles[1:5], [[0] * 4, [0, 0, 1, 0.1], [1, 0.1, 0, 0], [1, 0.1] * 2])
    np.testing.assert_allclose(angles[5:], rope.fixed_angles(rotation(theta=10_000.0), 8))


@pytest.mark.parametrize("halves, pair", [(True, (1, 5)), (False, (2, 3))])
def test_a_pair_of_channels_turns(halves: bool, pair: tuple[int, int]) -> None:
    x = np.zeros((1, 1, 1, 8), np.float32)
    x[..., pair[0]] = 2
    angles = jnp.full((1, 1, 1, 4), 0.3)
    found = rope.rotate(jnp.asarray(x), jnp.cos(angles), jnp.sin(angles), halves)
    expected = np.zeros(8)
    expected[list(pair)] = 2 * np.cos(0.3), 2 * np.sin(0.3)
    np.testing.assert_allclose(found[0, 0, 0], expected, atol=1e-6)


def test_products_depend_on_the_distance_alone() -> None:
    angles = rope.fixed_angles(rotation(grid=(1, 4)), 8)[None, None]
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 8)).astype(np.float32)
    tables = jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)
    turned = [rope.rotate(jnp.tile(x, (1, 1, 4, 1)), *tables, False)[0, 0] for x in (q, k)]
    products = np.asarray(turned[0] @ turned[1].T)
    for offset in range(-3, 4):
        diagonal = np.diagonal(products, offset)
        np.testing.assert_allclose(diagonal, diagonal[0], atol=1e-5)
    assert abs(products[0, 0] - products[0, 3]) > 0.1


def test_narrow_queries_turn_in_float32() -> None:
    x = jnp.asarray(np.random.default_rng(0).normal(size=(1, 1, 6, 8)), jnp.bfloat16)
    angles = 30 + rope.fixed_angles(rotation(), 8)[None, None]
    cos, sin = (jnp.asarray(f(angles), jnp.float32) for f in (np.cos, np.sin))
    found = rope.rotate(x, cos, sin, False)
    assert found.dtype == jnp.bfloat16
    exact = rope.rotate(x.astype(jnp.float32), cos, sin, False)
    np.testing.assert_array_equal(found, exact.astype(jnp.bfloat16))


def test_learned_frequencies_start_as_fixed_ones_that_are_turned() -> None:
    found = np.asarray(rope.mixed_init(100.0)(jax.random.key(0), (2, 3, 8)))
    lengths = np.hypot(*found)
    np.testing.assert_allclose(lengths, np.tile(100.0 ** -(np.arange(4) / 4), (3, 2)), rtol=1e-5)
    across = (found[:, :, :4] * found[:, :, 4:]).sum(axis=0)
    np.testing.assert_allclose(across, 0, atol=1e-6)
    assert np.ptp(np.arctan2(*found[:, :, 0])) > 0.1, "each head has a direction of its own"


def test_learned_frequencies_of_one_axis_are_the_fixed_angles() -> None:
    frequencies = np.zeros((2, 1, 4), np.float32)
    frequencies[0, 0, :2] = frequencies[1, 0, 2:] = 1, 0.1
    found = rope.mixed_angles(rotation(Rope.MIXED, unturned=2), jnp.asarray(frequencies))
    np.testing.assert_allclose(found[0], rope.fixed_angles(rotation(unturned=2), 8), atol=1e-6)


_ON = {"rope": "lang"}


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"rope_theta": 10.0}, "model.rope_theta=10.0 has no effect without model.rope"),
        ({"rope_grid": (2, 2)}, "model.rope_grid=.* has no effect without"),
        ({"rope_registers": True}, "model.rope_registers=True has no effect without"),
        ({**_ON, "num_heads": 16}, "must be a multiple of 4"),
        ({"rope": "dinov3", "rope_grid": (2, 2)}, "model.rope_grid scales the places of"),
        ({**_ON, "rope_grid": (2, 2, 2)}, ("models.base.pair", "model.rope_grid")),
        ({"rope": "mixed", "rope_offset": 1.0}, "model.rope_offset moves"),
        ({**_ON, "rope_registers": True}, "not model.num_registers=0 by"),
        ({**_ON, "rope_registers": True, "num_registers": 2}, "not model.num_registers=2 by"),
        (
            {"rope": "dinov3", "rope_registers": True, "num_registers": 4},
            "a square of registers by model.rope=lang",
        ),
        ({**_ON, "token_merging": 1}, "model.token_merging=1 gives tokens no place"),
        ({"pool": "map", "pool_heads": 3}, ("models.base.check_heads", "model.pool_heads")),
        (
            {"pool": "map", "pool_heads": 4, "mup_base_dim": 8},
            ("models.mup.check_mup", "model.mup_base_dim"),
        ),
    ],
)
def test_what_does_not_go_together_is_refused(fields: dict[str, Any], message: Told) -> None:
    with refused_as(message):
        models.create(models.variant("vit_mu16", **fields))
