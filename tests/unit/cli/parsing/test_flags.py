# SPDX-License-Identifier: Apache-2.0
"""A flag is taken out of a command line before the others can be parsed."""

import pytest

from vit_jax.cli.parsing.flags import take
from vit_jax.errors import UserError


@pytest.mark.parametrize(
    "words, value",
    [
        (["--config=a=b"], "a=b"),
        (["-config", "a"], "a"),
        (["--config=two\nlines"], "two\nlines"),
        (["--config="], ""),
        (["--config"], ""),
        ([], None),
    ],
)
def test_its_fields_and_all_else_stay(words: list[str], value: str | None) -> None:
    rest = ["main.py", "--config.seed", "1", "--noconfig.log.tensorboard", "--configs=x", "config"]
    assert take("config", [*rest, *words]) == (value, rest)


def test_words_after_it_stay_in_their_order() -> None:
    assert take("config", ["x", "a", "--config", "b", "c", "d"]) == ("b", ["x", "a", "c", "d"])


@pytest.mark.parametrize("words", [["--config=a", "--config=a"], ["--config", "a", "-config"]])
def test_twice_is_refused(words: list[str]) -> None:
    with pytest.raises(UserError, match=r"^--config is given twice; which of them"):
        take("config", words)
