# SPDX-License-Identifier: Apache-2.0
"""An error knows its place and its field, and names what is near; names of files stay in a line."""

import copy
import pickle
from collections.abc import Callable

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


def _refuse(text: str, field: str | None = None) -> UserError:
    return UserError(text, field=field)


class _Longer(UserError):
    def __init__(self, text: str, *, more: int) -> None:
        super().__init__(text)
        self.more = more


def test_the_code_is_the_function_that_raised_it(subtests: pytest.Subtests) -> None:
    class Checked:
        def __init__(self) -> None:
            raise _Longer("", more=1)

    def inner() -> UserError:
        return next(UserError(text) for text in [""])

    with pytest.raises(UserError) as caught:
        Checked()
    here = "test_the_code_is_the_function_that_raised_it"
    for case, error, function in (
        ("a factory of errors", _refuse(""), "_refuse"),
        ("one of this module", unknown("model", "a", "b"), here),
        ("a subclass", _Longer("", more=1), here),
        ("a function within another", inner(), here),
        ("the constructor of another class", caught.value, here),
    ):
        with subtests.test(case):
            assert error.code == f"{__name__}.{function}"


@pytest.mark.parametrize(
    "text, field",
    [
        ("optim.warmup=-1 must be at least 0", "optim.warmup"),
        ("--config.optim.warmup=-1 must be at least 0", "optim.warmup"),
        ("tta=('x',) must be names", "tta"),
        ("--workdir is not empty", "--workdir"),
        ("--config.evals.top1: unknown", "evals.top1"),
        ("model.safetensors is empty", ""),  # a file
        ("runs/x: optim.warmup=-1 must be at least 0", ""),
        ("the labels are words; set model.num_classes=3", ""),
    ],
)
def test_the_field_is_what_the_text_begins_with(text: str, field: str) -> None:
    assert UserError(text).field == field
    assert UserError(text, field="data.name").field == "data.name"


def test_an_unknown_name_is_of_the_field_that_it_is_given_for() -> None:
    assert unknown("model.pool", "gpa", ["gap"]).field == "model.pool"
    assert unknown("--dtype", "f", ["float32"]).field == "--dtype"
    assert unknown("split of a/b.c", "f", ["train"]).field == ""
    assert unknown("pattern of", "f", ["a"], field="lora.train").field == "lora.train"


def test_words_around_an_error_keep_its_code_and_field() -> None:
    def around(text: str) -> UserError:
        try:
            raise _refuse("optim.warmup=-1 must be at least 0")
        except UserError as error:
            return UserError(text.format(error))

    around_it, other = around("point 3: {}"), around("tta=() is empty")
    assert (around_it.code, around_it.field) == (f"{__name__}._refuse", "optim.warmup")
    assert around("evals.top1={}").field == "evals.top1"
    here = "test_words_around_an_error_keep_its_code_and_field"
    assert (other.code, other.field) == (f"{__name__}.{here}", "tta")


@pytest.mark.parametrize("made_again", [lambda e: pickle.loads(pickle.dumps(e)), copy.copy])
def test_copies_keep_code_and_field(made_again: Callable[[UserError], UserError]) -> None:
    for error in (_refuse("a text", "data.name"), _Longer("optim.b1=2 is large", more=3)):
        again = made_again(error)
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))
        assert again.code
        assert again.field
