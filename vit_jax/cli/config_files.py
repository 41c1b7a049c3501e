# SPDX-License-Identifier: Apache-2.0
"""The files of configs/, read as text: what they are, and which one a wrong name may mean."""

import ast
import os
import re
from pathlib import Path
from typing import NamedTuple

from vit_jax import errors
from vit_jax.errors import UserError

_ROOT = Path("configs")


class ConfigFile(NamedTuple):
    """A config file, the first line of its docstring, and its arguments, `--config=FILE:RUN`."""

    path: str
    title: str
    runs: tuple[str, ...]


def names(root: Path = _ROOT) -> list[str]:
    """List the paths of the config files of a folder; none where there is no such folder."""
    found = os.listdir(root) if root.is_dir() else []
    return sorted(f"{root}/{n}" for n in found if n.endswith(".py") and not n.startswith("_"))


def read(root: Path = _ROOT) -> list[ConfigFile]:
    """Read the files' docstrings; nothing is imported."""
    found = []
    for name in names(root):
        text = ast.get_docstring(ast.parse(Path(name).read_text(encoding="utf-8"))) or ""
        # A list of runs goes on where its line ends with a comma.
        runs = re.search(r"^Runs: (.*(?:(?<=,)\n.*)*)", text, re.MULTILINE)
        listed = re.split(r",\s+", runs[1]) if runs else []
        found.append(ConfigFile(name, text.partition("\n")[0], tuple(listed)))
    return found


def unknown(config: str) -> UserError:
    """Build the error for a --config that names no file.

    It suggests the run whose words are those of the wrong name, `cait_imagenet.py:s24` for
    `cait_s24_imagenet.py`.
    """
    path, _, argument = config.partition(":")
    wanted = _words(f"{Path(path).stem}_{argument}")
    runs = [f"{file.path}:{run}" for file in read() for run in file.runs]
    near = [run for run in [*names(), *runs] if wanted and wanted <= _words(Path(run).name)]
    if near:
        fewest = min(len(_words(run)) for run in near)
        best = " or ".join(repr(run) for run in near if len(_words(run)) == fewest)
        return UserError(f"unknown config file {path!r}; did you mean {best}?")
    return errors.unknown("config file", path, names())


def _words(name: str) -> set[str]:
    return set(re.split(r"[_:]", name.replace(".py", ""))) - {""}
