# SPDX-License-Identifier: Apache-2.0
import sys

import pytest

from vit_jax.errors import UserError
from vit_jax.text import cleaning
from vit_jax.text.cleaning import Clean


def test_each_way(subtests: pytest.Subtests) -> None:
    text = " It\u2019s &amp;amp; snake_CASE,\tÉﬁne "
    rows = {
        Clean.REPAIR_LOWER: "it's & snake_case, éfine",
        Clean.REPAIR_SPACES: "It's & snake_CASE, Éfine",
        Clean.REPAIR_CANONICAL: "its snake case éfine",
        Clean.LOWER_ASCII: " it\u2019s &amp;amp; snake_case,\tÉﬁne ",
        Clean.LOWER: " it\u2019s &amp;amp; snake_case,\téﬁne ",
        Clean.LOWER_NO_PUNCTUATION: "it\u2019s ampamp snakecase éﬁne",
        Clean.NO_PUNCTUATION: "It\u2019s ampamp snakeCASE Éﬁne",
        Clean.SPACES: "It\u2019s &amp;amp; snake_CASE, Éﬁne",
        Clean.NONE: text,
    }
    assert set(rows) == set(Clean)
    for how, wanted in rows.items():
        with subtests.test(how.value):
            assert cleaning.clean(text, how) == wanted


def test_entities_are_undone_twice() -> None:
    assert cleaning.clean("<b> &amp;lt;", Clean.REPAIR_LOWER) == "<b> <"  # ftfy leaves HTML alone


def test_half_of_a_surrogate_pair_has_an_utf_8_too() -> None:
    for how in Clean:
        assert cleaning.clean("a\ud83d", how).encode()


def test_marks_after_punctuation_are_more_of_it() -> None:
    # open_clip's expression takes "!<" before it comes to the mark.
    rows = {
        "<start_of_text>a": "<start_of_text>a",
        "a<end_of_text><end_of_text>": "a<end_of_text><end_of_text>",
        "!<end_of_text>": "!<end _of_text>",
        "_<start_of_text>": "_<start _of_text>",
    }
    for text, wanted in rows.items():
        assert cleaning.clean(text, Clean.REPAIR_LOWER) == wanted


def test_without_ftfy_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ftfy", None)
    assert cleaning.clean("A", Clean.LOWER) == "a"
    with pytest.raises(UserError, match=r"'ftfy' is not installed; .*install"):
        cleaning.clean("A", Clean.REPAIR_LOWER)
