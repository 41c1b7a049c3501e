# SPDX-License-Identifier: Apache-2.0
"""A flag is taken out of a command line before the others can be parsed."""

from pathlib import Path

import pytest
from absl import flags

from vit_jax.cli.parsing.flags import parse, read_config, take
from vit_jax.errors import UserError

DIGITS = Path(__file__).parents[4] / "configs" / "vit_mu_digits.py"
VALUES = flags.FlagValues()
flags.DEFINE_integer("top", 5, "classes that are shown", flag_values=VALUES)


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


@pytest.mark.parametrize(
    "setting, told",
    [
        (
            "optim.milestones=30%,10%",
            """must be a tuple, such as "('30%','60%','90%')\"""",
        ),
        ("data.classes=1,%", """must be a tuple, such as 1,2 or "('a','b')\""""),
        ("data.mix.per_example=maybe", "must be true or false"),
        ("optim.lr=x", "must be a number"),
        ("seed=1.5", "must be a whole number"),
    ],
)
def test_a_value_of_another_kind_is_named(setting: str, told: str) -> None:
    with pytest.raises(UserError) as caught:
        read_config(["main.py", f"--config={DIGITS}", f"--config.{setting}"])
    assert str(caught.value) == f"--config.{setting} {told}"


def test_an_unknown_flag_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"^unknown flag '--topp'; did you mean '--top'"):
        parse(["main.py", "--topp=1"], VALUES)
    with pytest.raises(UserError, match=r"^unexpected argument 'x'; flags are written --"):
        parse(["main.py", "x"], VALUES)


def test_without_a_config_each_is_listed() -> None:
    with pytest.raises(UserError, match=r"^which run\? add --config=FILE, one of: .*vit_mu_digits"):
        read_config(["main.py"])
