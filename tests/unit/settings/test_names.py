# SPDX-License-Identifier: Apache-2.0
"""Messages name the field that was meant, and what it may be."""

import dataclasses

import pytest

from vit_jax.errors import UserError
from vit_jax.settings.names import brief, check_path, check_value_path, nearest, words, written


@dataclasses.dataclass
class Inner:
    lr: float = 0.1
    warmup: str = "1 epoch"


@dataclasses.dataclass
class Outer:
    optim: Inner = dataclasses.field(default_factory=Inner)
    duration: str = "3 epochs"
    seeds: dict = dataclasses.field(default_factory=lambda: {"data": 1})


def test_fields_of_dataclasses_and_dicts_are_there() -> None:
    for path in ("optim.lr", "duration", "seeds.data", "optim"):
        check_path(Outer(), path)
    check_value_path(Outer(), "optim.lr")


@pytest.mark.parametrize(
    "path, message",
    [
        ("optim.lrr", "unknown key optim.lrr; did you mean optim.lr"),
        ("learning_rate", "did you mean optim.lr?"),
        ("duration.steps", "config.duration is a value, it has no field 'steps'"),
        ("zzz", "unknown key zzz: config has no field 'zzz'"),
    ],
)
def test_unknown_fields_are_refused_with_the_nearest(path: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        check_path(Outer(), path)
    assert message in str(error.value)


def test_a_group_is_refused_with_what_is_in_it() -> None:
    with pytest.raises(UserError, match=r"set one of --config\.optim\.lr, --config\.optim\.warmup"):
        check_value_path(Outer(), "optim")


def test_the_nearest_field_comes_first_and_unlike_ones_do_not() -> None:
    tree = {"config": {"lr": 1, "lrs": 2, "duration": 3}}
    assert nearest(tree, "config.lr") == ["config.lr", "config.lrs"]
    assert nearest(tree, "config.zzz") == []


@pytest.mark.parametrize(
    "kind, default, text",
    [
        (int, 1, "a whole number"),
        (bool, True, "true or false"),
        (str, "3 epochs", "a string, such as '3 epochs'"),
        (tuple[int, ...], (), "whole numbers, such as 1,3,7"),
        (tuple[float, float], (0.1, 2.0), "(number, number), such as 0.1,2.0"),
        (int | None, None, "a whole number or None"),
    ],
)
def test_what_a_field_may_be(kind: type, default: object, text: str) -> None:
    assert words(kind, default) == text


def test_values_are_written_as_flags_take_them_and_cut() -> None:
    assert written(("30%",)) == "\"('30%',)\""
    assert brief("x" * 300) == "'" + "x" * 196 + "..."
    assert brief(10**5000) == "..."
