# SPDX-License-Identifier: Apache-2.0
"""Flags, their help and their errors come from a dataclass."""

import dataclasses
import enum
from pathlib import Path

import pytest

from tests.refusals import RANGE, Told, refused_as
from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass(kw_only=True)
class Shared(Options):
    from_: str = flag("", "where from", "DIR", ask="where from? add --from=DIR")


@dataclasses.dataclass(kw_only=True)
class Paint(Shared):
    """Paints.

    All of it.

      paint --from=x wall

    Exit status: 0.
    """

    walls: tuple[str, ...] = flag((), "what to paint", "[WALL ...]")
    colour: Colour = flag(Colour.RED, "the colour")
    layers: tuple[int, ...] = flag((1, 2), "how thick", least=1)
    share: float | None = flag(None, "of the wall", above=0, most=1)
    out: Path | None = flag(None, "a picture")
    dry: bool | None = flag(None, "wait, or not")
    count: int = flag(3, "how often", least=0)


def read(*words: str) -> Paint:
    (given,) = options.read_options(Paint, ["paint", *words])
    return given


def test_values_have_the_types_of_their_fields() -> None:
    assert read("--from=x") == Paint(from_="x")
    given = read("a", "--from", "x", "--layers=3, 4", "-share=.5", "--nodry", "b", "--", "--c")
    assert given == Paint(from_="x", walls=("a", "b", "--c"), layers=(3, 4), share=0.5, dry=False)
    given = read("--from=x", "--colour=BLUE", "--out=~/a", "--dry", "--count=1_000")
    assert (given.colour, given.out) == (Colour.BLUE, Path.home() / "a")
    assert (given.dry, given.count) == (True, 1000)


@pytest.mark.parametrize(
    "words, told",
    [
        ([], r"^where from\? add --from=DIR"),
        (["--colour=rad"], ("settings.fields._read_choice", "--colour")),
        (["--layers=1,x"], "--layers=1,x must be whole numbers, such as 1,2"),
        (["--layers="], "--layers= must be whole numbers, such as 1,2"),
        (["--layers=1,0"], (RANGE, "--layers")),
        (["--share=2"], (RANGE, "--share")),
        (["--share=nan"], ("settings.fields._check_numbers", "--share")),
        (["--share=x"], "--share=x must be a number"),
        (["--count=1.5"], "--count=1.5 must be a whole number"),
        (["--count=99999999999999999999"], ("settings.fields._check_numbers", "--count")),
        (["--dry=maybe"], ("cli.parsing.flags.parse", "--dry")),
        (["--out=--dry"], "--out=--dry looks like a flag"),
        (["--colur=red"], ("cli.parsing.flags.parse", "--colur")),
    ],
)
def test_mistakes_are_named(words: list[str], told: Told) -> None:
    with refused_as(told):
        read(*(["--from=x"] if words else []), *words)


def test_the_help_says_all_that_the_class_says() -> None:
    lines = options.help_text(Paint).splitlines()
    assert lines[0] == "usage: vit_jax test_options --from=DIR [WALL ...] [flags]"
    assert lines[2:5] == ["Paints.", "", "All of it."]
    assert lines[-3:] == ["  paint --from=x wall", "", "Exit status: 0."]
    shown = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[6:-4]}
    assert shown == {
        "WALL": "... what to paint",
        "--colour=red|blue": "the colour (default: red)",
        "--layers=N,...": "how thick (default: 1,2)",
        "--share=X": "of the wall",
        "--out=FILE": "a picture",
        "--dry,": "--nodry wait, or not",
        "--count=N": "how often (default: 3)",
        "--from=DIR": "where from",
        "--debug": "show the traceback of an error",
    }
