# SPDX-License-Identifier: Apache-2.0
"""Every layer of a stacked parameter is a tensor of its own to each transformation."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.optim import transforms

# Two layers of a stack, and a parameter of one.
PARAMS = {
    "blocks": {"fc": {"kernel": np.array([[[3.0, 4.0]], [[6.0, 8.0]]], np.float32)}},
    "head": {"kernel": np.array([[5.0, 12.0]], np.float32)},
}
STACK, HEAD = "blocks/fc/kernel", "head/kernel"


def _apply(transform: optax.GradientTransformation, updates: Any) -> tuple[np.ndarray, np.ndarray]:
    found, _ = transform.update(updates, transform.init(PARAMS), PARAMS)
    return _arrays(found)


def _arrays(found: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(found["blocks"]["fc"]["kernel"]), np.asarray(found["head"]["kernel"])


def _like(stack: Any, head: Any) -> dict:
    return {
        "blocks": {"fc": {"kernel": jnp.asarray(stack, jnp.float32)}},
        "head": {"kernel": jnp.asarray(head, jnp.float32)},
    }


ONES = _like(np.ones((2, 1, 2)), np.ones((1, 2)))


def _values(first: Any, second: Any, head: Any) -> dict[str, np.ndarray]:
    return {STACK: np.array([first, second]).reshape(2, 1, 1), HEAD: np.array(head)}


def test_decay_is_added_where_it_is_wanted() -> None:
    stack, head = _apply(transforms.add_decay(0.5, _values(True, False, True)), ONES)
    np.testing.assert_allclose(stack, [[[2.5, 3.0]], [[1.0, 1.0]]])
    np.testing.assert_allclose(head, [[3.5, 7.0]])


def test_decay_by_a_schedule_counts_its_steps() -> None:
    transform = transforms.add_decay(lambda step: 0.5 * step, _values(True, False, True))
    state = transform.init(PARAMS)
    for step in range(3):
        found, state = transform.update(ONES, state, PARAMS)
        stack = found["blocks"]["fc"]["kernel"]
        np.testing.assert_allclose(stack[0], [[1 + 1.5 * step, 1 + 2.0 * step]])
        np.testing.assert_array_equal(stack[1], 1)
        assert state.count == step + 1


def test_each_layer_has_its_factor() -> None:
    stack, head = _apply(transforms.multiply(_values(2.0, 3.0, 1.0)), ONES)
    np.testing.assert_allclose(stack[:, 0, 0], [2, 3])
    np.testing.assert_allclose(head, 1)


def test_masked_layers_are_filled_even_where_they_are_not_finite() -> None:
    bad = _like([[[np.nan, 1]], [[np.nan, 1]]], [[np.inf, 1]])
    stack, head = _apply(transforms.fill(_values(True, False, True), 0.0), bad)
    np.testing.assert_array_equal(stack[0], 0)
    assert np.isnan(stack[1, 0, 0])
    np.testing.assert_array_equal(head, 0)


@pytest.mark.parametrize("norm, length", [(1.0, 1.0), (100.0, 6.0**0.5)])
def test_a_norm_above_the_limit_is_brought_to_it(norm: float, length: float) -> None:
    found = np.concatenate([x.ravel() for x in _apply(transforms.clip_norm(norm), ONES)])
    assert np.linalg.norm(found) == pytest.approx(length)


def test_a_norm_is_set_and_zeros_stay_zero() -> None:
    found = np.concatenate([x.ravel() for x in _arrays(transforms.scale_to_norm(ONES, 3.0))])
    assert np.linalg.norm(found) == pytest.approx(3.0)
    zeros = _like(np.zeros((2, 1, 2)), np.zeros((1, 2)))
    assert not any(x.any() for x in _arrays(transforms.scale_to_norm(zeros, 3.0)))


def test_each_layer_is_scaled_to_the_norm_of_its_own_parameter() -> None:
    adapted = _values(True, True, False)
    stack, head = _apply(transforms.scale_by_layer_trust_ratio(adapted), ONES)
    np.testing.assert_allclose(np.linalg.norm(stack, axis=(1, 2)), [5, 10], rtol=1e-6)
    np.testing.assert_allclose(head, 1)


def test_an_orthogonal_matrix_gets_its_root_mean_square() -> None:
    stack, _ = _apply(transforms.scale_by_matrix_size(0.2), ONES)
    np.testing.assert_allclose(stack, 0.2 * 2**0.5, rtol=1e-6)
