# SPDX-License-Identifier: Apache-2.0
"""Arrays are pixels by their dtype or normalised by their range; what is neither is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.inference.units import as_input, as_numpy, as_pixels

SHAPE = (6, 5, 3)
PIXELS = np.random.default_rng(0).integers(0, 256, (2, *SHAPE), np.uint8)
HALF = ((0.5,), (0.5,))
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
RULES = (HALF, IMAGENET)


def normal(rules, pixels=PIXELS) -> np.ndarray:
    return ((pixels / 255 - np.array(rules[0])) / np.array(rules[1])).astype(np.float32)


@pytest.mark.parametrize("rules", RULES)
def test_integers_are_pixels_whatever_their_width(rules) -> None:
    for kind in (np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        for array in (PIXELS.astype(kind), jnp.asarray(PIXELS.astype(kind))):
            found = as_input(array, SHAPE, *rules)
            assert found.dtype == jnp.uint8
            np.testing.assert_array_equal(found, PIXELS)
    for wrong in (PIXELS.astype(np.int32) - 1, PIXELS.astype(np.int64) * 257):
        with pytest.raises(UserError, match=r"images of int\d\d from .*, not 0 to 255; give uint8"):
            as_input(wrong, SHAPE, *rules)


@pytest.mark.parametrize("kind", [bool, np.int8, np.complex64])
def test_what_holds_no_pixels_is_refused(kind) -> None:
    with pytest.raises(UserError, match=r"images of \w+ have no pixels; give uint8 pixels"):
        as_input(PIXELS.astype(kind), SHAPE, *HALF)


@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16, jnp.bfloat16])
def test_floats_must_be_normalised(rules, kind) -> None:
    ready = normal(rules).astype(kind)
    np.testing.assert_array_equal(
        as_input(ready, SHAPE, *rules), ready.astype(np.float32), strict=False
    )
    said = r"; normalised ones lie from .* to .*`preprocess` .* or normalised=True if these are$"
    for wrong, why in (
        (PIXELS.astype(kind), "are not normalised"),
        ((PIXELS / 255).astype(kind), "look like 0 to 1"),
        ((PIXELS / 255 * 1000 - 500).astype(kind), "are not normalised"),
        ((PIXELS // 100).astype(kind), "(are not normalised|look like 0 to 1)"),  # dark pixels
        (np.full_like(ready, np.nan), "are not normalised"),
    ):
        with pytest.raises(UserError, match=why + said):
            as_input(wrong, SHAPE, *rules)
        assert as_input(wrong, SHAPE, *rules, normalised=True).shape == (2, *SHAPE)
    # Nothing can be told from one value; a cubic resize may go a little beyond the range.
    as_input(np.zeros((1, *SHAPE), kind), SHAPE, *rules)
    as_input((ready * 1.05).astype(kind), SHAPE, *rules)


def test_zero_to_one_is_normalised_where_that_is_the_range() -> None:
    as_input((PIXELS / 255).astype(np.float32), SHAPE, (0.0,), (1.0,))


def test_other_shapes_are_refused_with_a_hint() -> None:
    first = np.zeros((2, 3, 6, 5), np.uint8)
    with pytest.raises(UserError, match=r"\(B, 6, 5, 3\); channels come last here: transpose by"):
        as_input(first, SHAPE, *HALF)
    one = (
        r"images of shape \(6, 5, 3\): the model takes \(B, 6, 5, 3\); one image is images\[None\];"
    )
    with pytest.raises(UserError, match=one):
        as_input(PIXELS[0], SHAPE, *HALF)


def test_pixels_are_not_said_to_be_normalised() -> None:
    for kind in (np.uint8, np.int64):
        with pytest.raises(UserError, match=r"normalised=True, but images of \w+ are pixels"):
            as_input(PIXELS.astype(kind), SHAPE, *HALF, normalised=True)


def test_while_a_function_is_traced_the_dtype_decides() -> None:
    shaped = jax.eval_shape(lambda x: as_input(x, SHAPE, *HALF), jnp.asarray(PIXELS / 255))
    assert shaped.dtype == jnp.float32
    assert jax.eval_shape(lambda x: as_input(x, SHAPE, *HALF), PIXELS).dtype == jnp.uint8
    with pytest.raises(UserError, match="images of int32, inside a traced function; give uint8"):
        jax.eval_shape(lambda x: as_input(x, SHAPE, *HALF), PIXELS.astype(np.int32))


class Tensor:
    """Like a tensor of torch that wants a gradient, which NumPy does not take as it is."""

    def __init__(self, array) -> None:
        self.array, self.detached = array, False

    def detach(self) -> "Tensor":
        self.detached = True
        return self

    def cpu(self) -> "Tensor":
        return self

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        assert self.detached
        return self.array


def test_arrays_of_other_libraries_are_taken_and_what_is_none_is_refused() -> None:
    np.testing.assert_array_equal(as_numpy(Tensor(PIXELS)), PIXELS)
    np.testing.assert_array_equal(as_numpy(PIXELS.tolist()), PIXELS)
    np.testing.assert_array_equal(as_pixels(PIXELS.astype(np.int64)), PIXELS)
    for wrong in (object(), {"a": 1}, "text", ["text"], None, [[1, 2], [3]]):
        with pytest.raises(UserError, match="is no array of pixels"):
            as_numpy(wrong)
