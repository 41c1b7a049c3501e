# SPDX-License-Identifier: Apache-2.0
"""docs/commands.md is what every command's --help prints; this file, run, writes it."""

import contextlib
import importlib
import io
from collections.abc import Iterator
from pathlib import Path

from vit_jax.__main__ import VERBS, module

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
INSIDE = {"sweep": ("plan", "run", "status", "report")}
HEAD = """# Commands

What `--help` prints, for every command. A flag is written `--name=value` or `--name value`; one
without a value is turned off by `--noname`. A mistake is one line with the nearest valid choice,
and exit status 2.
"""


def helps() -> Iterator[tuple[str, str]]:
    """Yield each command and its help."""
    for verb in VERBS:
        for words in ((verb, inside) for inside in INSIDE.get(verb, ("",))):
            main = importlib.import_module(module(verb)).main
            with contextlib.redirect_stdout(io.StringIO()) as out:
                assert main([*filter(None, words), "--help"]) == 0
            yield " ".join(filter(None, words)), out.getvalue().rstrip()


def page() -> str:
    """Return the page."""
    parts = [f"## {name}\n\n```log\n{text}\n```\n" for name, text in helps()]
    return "\n".join([HEAD, *parts])


def test_the_page_is_what_help_prints() -> None:
    assert PAGE.read_text() == page(), "write it anew: python -m tests.meta.test_commands_page"


if __name__ == "__main__":
    PAGE.write_text(page())
