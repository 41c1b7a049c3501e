# SPDX-License-Identifier: Apache-2.0
"""The files of configs/, found by name and read as text."""

import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vit_jax import errors
from vit_jax.errors import UserError

_PACKAGE = Path(__file__).parents[1]
# Installed, the files lie in the package; in a clone beside it.
FOLDER = next(f for f in (_PACKAGE / "configs", _PACKAGE.parent / "configs", Path()) if f.is_dir())
SWEEPS = "sweeps"


class ConfigFile(NamedTuple):
    """A config file, the first line of its docstring, and its arguments, `--config=NAME:RUN`."""

    name: str
    title: str
    runs: tuple[str, ...]


def names(folder: str = "") -> list[str]:
    """List the names of the files, without ".py", of configs/ or of a folder in it."""
    found = os.listdir(FOLDER / folder)
    return sorted(n.removesuffix(".py") for n in found if re.fullmatch(r"[^_.].*\.py", n))


def read(folder: str = "") -> list[ConfigFile]:
    """Read the files' docstrings; nothing is imported."""
    found = []
    for name in names(folder):
        source = (FOLDER / folder / f"{name}.py").read_text(encoding="utf-8")
        text = ast.get_docstring(ast.parse(source)) or ""
        # A list of runs goes on where its line ends with a comma.
        runs = re.search(r"^Runs: (.*(?:(?<=,)\n.*)*)", text, re.MULTILINE)
        listed = re.split(r",\s+", runs[1]) if runs else []
        found.append(ConfigFile(name, text.partition("\n")[0], tuple(listed)))
    return found


def find(config: str) -> tuple[Path, str | None]:
    """Return the file that --config names, and the argument after its colon, if any.

    A file of one's own is named by its path; one of configs/ by its name, from any directory. A
    file that holds several runs is also found by all words of one: "deit_s16_imagenet" is
    "deit_imagenet:s16".

    Raises UserError: there is none.
    """
    path, colon, argument = config.partition(":")
    if os.path.isfile(path):  # unlike pathlib's, False of a long name
        return Path(path), argument if colon else None
    name = path.removeprefix("configs/").removesuffix(".py")
    if name in names():
        return FOLDER / f"{name}.py", argument if colon else None
    runs = {f"{file.name}:{run}": file.name for file in read() for run in file.runs}
    words = _words(f"{Path(name).name}_{argument}")
    meant = [run for run in runs if _words(run) == words]
    if len(meant) == 1:
        return FOLDER / f"{runs[meant[0]]}.py", meant[0].partition(":")[2]
    near = [run for run in [*names(), *runs] if words and words <= _words(run)]
    if not near:
        raise errors.unknown("config file", name, names())
    fewest = min(len(_words(run)) for run in near)
    best = " or ".join(repr(run) for run in near if len(_words(run)) == fewest)
    raise UserError(f"unknown config file {name!r}; did you mean {best}?")


def is_trusted(config: str, apart: Sequence[Path]) -> bool:
    """Return whether a config that somebody else names may run: config files are programs.

    It is one of configs/, or a file in the current directory or below it, wherever links lead, that
    is not in a directory of `apart`. Raises UserError: there is no such file.
    """
    file = find(config)[0].resolve()
    if Path() != FOLDER and file.is_relative_to(FOLDER.resolve()):
        return True
    away = any(file.is_relative_to(each.resolve()) for each in apart)
    return file.is_relative_to(Path.cwd().resolve()) and not away


def _words(name: str) -> set[str]:
    return set(re.split(r"[_:]", name)) - {""}
