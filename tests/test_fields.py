# SPDX-License-Identifier: Apache-2.0
"""A value and an annotation: what is taken, as what, and how the rest is refused."""

import dataclasses
import enum
from typing import Any, Literal

import numpy as np
import pytest

from vit_jax import fields
from vit_jax.errors import UserError


class Color(enum.StrEnum):
    """Two choices."""

    RED = "red"
    BLUE = "dark_blue"


@dataclasses.dataclass
class Inner:
    """What another dataclass holds."""

    sizes: tuple[int, ...] = (2, 3)


Pairs = tuple[tuple[str, float], ...]
TAKEN = [
    (int, 3, 3),
    (int, np.int64(3), 3),
    (float, 1, 1.0),
    (float, np.float32(0.25), 0.25),
    (bool, 1, True),
    (bool, np.False_, False),
    (str, "a", "a"),
    (Color, "dark_blue", Color.BLUE),
    (Color, "Red", Color.RED),
    (Color, Color.RED, Color.RED),
    (tuple[int, ...], 64, (64,)),
    (tuple[int, ...], [6, 4], (6, 4)),
    (tuple[float, ...], 0.5, (0.5,)),
    (tuple[float, ...], (1, 0.5), (1.0, 0.5)),
    (tuple[str, ...], "^head", ("^head",)),
    (tuple[int, ...], range(3), (0, 1, 2)),
    (tuple[float, ...], np.array([0.5, 1.0]), (0.5, 1.0)),
    (tuple[str, ...], (), ()),
    (tuple[int, float], [1, 2], (1, 2.0)),
    (Pairs, [["^head", 10]], (("^head", 10.0),)),
    (int | str, "a", "a"),
    (float | None, None, None),
    (float | int, 1, 1),
    (Literal["a", 1], 1, 1),
    (dict[str, int], {"a": np.int32(2)}, {"a": 2}),
    (Any, object, object),
]


@pytest.mark.parametrize("kind, value, read", TAKEN, ids=str)
def test_what_can_mean_one_thing_is_taken(kind: Any, value: Any, read: Any) -> None:
    found = fields.conformed(kind, "x", value)
    assert found == read
    assert type(found) is type(read)
    if isinstance(read, tuple):
        assert [type(item) for item in found] == [type(item) for item in read]


REFUSED = [
    (int, "64", "x='64' (str) must be a whole number"),
    (int, 2.0, "x=2.0 (float) must be a whole number"),
    (int, True, "x=True (bool) must be a whole number"),
    (int, None, "x=None (NoneType) must be a whole number"),
    (int, 2**63, "x is a number of more than 64 bits; choose a smaller one"),
    (float, "1e-3", "x='1e-3' (str) must be a number"),
    (float, float("inf"), "x=inf must be finite"),
    (bool, "yes", "x='yes' (str) must be true or false"),
    (bool, 2, "x=2 (int) must be true or false"),
    (str, 5, "x=5 (int) must be a string: '5', or as a duration '5 steps'"),
    (str, None, "x=None (NoneType) must be a string"),
    (Color, "rde", "unknown x 'rde'; did you mean 'red'?"),
    (tuple[int, ...], "a", "x='a' (str) must be whole numbers, such as 1,3,7"),
    (tuple[int, ...], (1.5, 2), "x=(1.5, 2) must be whole numbers, such as 1,3,7"),
    (tuple[float, ...], (0.5, float("nan")), "x=(0.5, nan) must be finite"),
    (tuple[int, float], (1,), "x=(1,) must be (whole number, number), such as 3,0.5"),
    (
        Pairs,
        {"^head": 10.0},
        "x={'^head': 10.0} (dict) must be a tuple of (string, number)s, such as "
        "\"(('^head', 0.5),)\"",
    ),
    (int | None, "a", "x='a' (str) must be a whole number or None"),
    (Literal["a", "b"], "c", "unknown x 'c'; valid: a, b."),
    (dict[str, Inner], None, "x=None (NoneType) must be a dict from string to Inner"),
    (dict[str, Inner], {"a": "b"}, "x.a='b' (str) must be an Inner"),
    (dict[str, Inner], {"a": Inner(sizes=("a",))}, "x.a.sizes=('a',) must be whole numbers, "),
    (Inner, Inner, "x=<class 'tests.test_fields.Inner'> (type) must be an Inner"),
]


@pytest.mark.parametrize("kind, value, told", REFUSED, ids=str)
def test_the_rest_is_refused_by_name(kind: Any, value: Any, told: str) -> None:
    with pytest.raises(UserError) as error:
        fields.conformed(kind, "x", value)
    assert str(error.value).startswith(told)
    assert "\n" not in str(error.value)


def test_a_long_value_is_cut() -> None:
    with pytest.raises(UserError) as error:
        fields.conformed(int, "x", "a" * 10_000)
    assert len(str(error.value)) < 300


def test_a_tree_is_changed_in_place_and_once() -> None:
    node = Inner(sizes=[4, 5])  # pyright: ignore[reportArgumentType]
    fields.conform(node, "a.")
    assert node.sizes == (4, 5)
    kept = node.sizes
    fields.conform(node, "a.")
    assert node.sizes is kept
    node.sizes = "a"  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(UserError, match=r"^a\.sizes='a' \(str\) must be .*, such as 2,3$"):
        fields.conform(node, "a.")
