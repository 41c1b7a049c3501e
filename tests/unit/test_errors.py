# SPDX-License-Identifier: Apache-2.0
"""Messages name the nearest valid choices, and names of files stay in one line."""

import pytest

from vit_jax.errors import DataError, NonFinite, UserError, shown, unknown


def test_near_names_are_suggested_nearest_first() -> None:
    error = unknown("model", "vit_b61", ["vit_b16", "vit_b32", "swin_t"])
    assert str(error) == "unknown model 'vit_b61'; did you mean 'vit_b16' or 'vit_b32'?"


def test_without_a_near_name_the_choices_are_listed_up_to_twelve() -> None:
    assert str(unknown("kind", "zzz", "ba")) == "unknown kind 'zzz'; valid: a, b."
    assert str(unknown("kind", "zzz", [])) == "unknown kind 'zzz'; valid: none."
    many = str(unknown("kind", "zzz", [f"n{i:02}" for i in range(20)]))
    assert many.endswith("n10, n11, ... (20 in all).")


@pytest.mark.parametrize(
    "name, line",
    [("a b.jpg", "a b.jpg"), ("é", "é"), ("a\nb", r"'a\nb'"), ("\udcff", r"'\udcff'")],
)
def test_names_of_files_are_one_line(name: str, line: str) -> None:
    assert shown(name) == line


def test_each_kind_of_fault_has_its_own_status() -> None:
    assert [kind.status for kind in (UserError, DataError, NonFinite)] == [2, 65, 70]
