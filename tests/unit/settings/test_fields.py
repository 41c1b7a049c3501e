# SPDX-License-Identifier: Apache-2.0
"""A value and an annotation: what is taken, as what, and how the rest is refused."""

import dataclasses
import enum
from typing import Any

import numpy as np
import pytest

from vit_jax.errors import UserError
from vit_jax.settings import fields


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
    (tuple[int, float], (1,), "x=(1,) must be (whole number, number), such as 1,0.5"),
    (
        Pairs,
        {"^head": 10.0},
        "x={'^head': 10.0} (dict) must be a tuple of (string, number)s, such as "
        "\"(('^head', 0.5),)\"",
    ),
    (int | None, "a", "x='a' (str) must be a whole number or None"),
    (dict[str, Inner], None, "x=None (NoneType) must be a dict from string to Inner"),
    (dict[str, Inner], {"a": "b"}, "x.a='b' (str) must be an Inner"),
    (dict[str, Inner], {"a": Inner(sizes=("a",))}, "x.a.sizes=('a',) must be whole numbers, "),
    (Inner, Inner, "x=<class 'tests.unit.settings.test_fields.Inner'> (type) must be an Inner"),
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


@dataclasses.dataclass(kw_only=True)
class Ranges:
    """Fields with what they may hold."""

    rate: float = fields.value(0.0, least=0, below=1, note="0 turns it off")
    lr: float = fields.value(0.5, above=0)
    depths: tuple[int, ...] = fields.value((2, 2), least=1, most=9)
    pairs: Pairs = fields.value((), above=0)
    shift: tuple[float, ...] = fields.value((0.0,), lengths=(1, 3))
    kind: Color = fields.value(Color.RED, free=True)


@dataclasses.dataclass(kw_only=True)
class Tree:
    """Groups of fields."""

    ranges: Ranges = fields.group(Ranges)
    log: Inner = fields.group(Inner, free=True)
    evals: dict[str, Ranges] = fields.group(dict)


@pytest.mark.parametrize(
    "setting, told",
    [
        ({"rate": -0.1}, "a.rate=-0.1 must be at least 0 and below 1; 0 turns it off"),
        ({"rate": 1}, "a.rate=1.0 must be at least 0 and below 1; 0 turns it off"),
        ({"lr": 0.0}, "a.lr=0.0 must be above 0"),
        ({"depths": (3, 0)}, "a.depths=(3, 0) must be at least 1 and at most 9"),
        ({"depths": (10,)}, "a.depths=(10,) must be at least 1 and at most 9"),
        ({"pairs": (("x", 1.0), ("y", 0.0))}, "a.pairs=(('x', 1.0), ('y', 0.0)) must be above 0"),
        ({"shift": (1.0, 2.0)}, "a.shift=(1.0, 2.0) must hold 1 or 3 values"),
        ({"rate": float("nan")}, "a.rate=nan must be finite"),
    ],
)
def test_a_value_out_of_its_fields_range_is_refused(setting: Any, told: str) -> None:
    with pytest.raises(UserError) as error:
        fields.conform(Ranges(**setting), "a.")
    assert str(error.value) == told


def test_ranges_hold_all_the_way_down_a_tree() -> None:
    ends = Ranges(rate=0.0, depths=(1, 9), pairs=(("x", 1e-9),), shift=(1.0, 2.0, 3.0))
    fields.conform(Tree(ranges=ends, evals={"val": Ranges()}))
    with pytest.raises(UserError, match=r"^ranges\.lr=-1\.0 must"):
        fields.conform(Tree(ranges=Ranges(lr=-1)))
    with pytest.raises(UserError, match=r"^evals\.val\.lr=-1\.0 must"):
        fields.conform(Tree(evals={"val": Ranges(lr=-1)}))
    assert Tree().ranges is not Tree().ranges


def test_a_field_is_free_by_itself_or_by_its_group() -> None:
    tree = Tree(evals={"val": Ranges()})
    for name in ("ranges.kind", "log", "log.sizes", "log.of_another_version"):
        assert fields.is_free(tree, name), name
    for name in ("ranges", "ranges.lr", "ranges.nothing", "nothing.kind", "evals.val.kind"):
        assert not fields.is_free(tree, name), name


def test_only_what_was_changed_must_act() -> None:
    rules = [(False, "without x", "rate", "lr"), (False, "in red", "kind"), (True, "", "depths")]
    fields.check_effects(Ranges(depths=(3,)), "a.", rules)
    with pytest.raises(UserError) as error:
        fields.check_effects(Ranges(lr=2.0), "a.", rules)
    assert str(error.value) == "a.lr=2.0 has no effect without x; leave it at 0.5"
    with pytest.raises(UserError, match=r"^a\.kind=dark_blue has .* in red; leave it at red$"):
        fields.check_effects(Ranges(kind=Color.BLUE), "a.", rules)


def test_a_pattern_that_is_no_regex_is_refused_by_its_field() -> None:
    assert fields.regex("optim.decay", "kernel$").search("head/kernel")
    with pytest.raises(UserError, match=r"^optim\.decay: '\(' is not a regex: "):
        fields.regex("optim.decay", "(")


def test_a_config_of_no_class_is_told_one() -> None:
    with pytest.raises(UserError, match=r"^x=None .* must be an Inner, such as Inner\(\)$"):
        fields.conformed(Inner, "x", None, Inner)


def test_a_text_is_told_with_what_it_may_be() -> None:
    with pytest.raises(UserError, match=r"^x=5 \(int\) must be a string, such as '90 epochs'$"):
        fields.conformed(str, "x", 5, "90 epochs")
    with pytest.raises(UserError, match=r"""^x=\(3,\) must be strings, such as "\('30%',\)"$"""):
        fields.conformed(tuple[str, ...], "x", (3,), ("30%",))
