# SPDX-License-Identifier: Apache-2.0
"""docs/commands.md is what every command's --help prints; this file, run, writes it.

So it does vit_jax/cli/help.json, from which `vit_jax VERB --help` prints, importing no verb.
"""

import contextlib
import importlib
import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from vit_jax.__main__ import VERBS, module

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "commands.md"
WRITTEN = ROOT / "vit_jax" / "cli" / "help.json"
INSIDE = {"sweep": ("plan", "run", "status", "report")}
HEAD = """# Commands

What `--help` prints, for every command. A flag is written `--name=value` or `--name value`; one
without a value is turned off by `--noname`. A mistake is one line with the nearest valid choice,
and exit status 2.
"""


# Prints which of the libraries that take long a command has imported, and how many modules in all.
IMPORTED = """
import atexit, runpy, sys
heavy = {"jax", "jaxlib", "numpy", "flax", "orbax", "tensorflow", "absl", "ml_collections", "yaml"}
told = lambda: print(*sorted(heavy & set(sys.modules)), len(sys.modules), file=sys.stderr)
atexit.register(told)
sys.argv.pop(0)
sys.path.insert(0, ".")
if sys.argv[0] == "-m":
    sys.argv.pop(0)
    runpy.run_module(sys.argv[0], run_name="__main__")
elif sys.argv[0] == "-c":
    exec(sys.argv[1])
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


def help_of(verb: str, *words: str) -> str:
    """Return what the module of a verb prints as its help."""
    main = importlib.import_module(module(verb)).main
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert main([verb, *words, "--help"]) == 0
    return out.getvalue().rstrip()


def helps() -> Iterator[tuple[str, str]]:
    """Yield each command and its help."""
    for verb in VERBS:
        for inside in INSIDE.get(verb, ("",)):
            words = filter(None, (verb, inside))
            yield " ".join(words), help_of(verb, *filter(None, (inside,)))


def page() -> str:
    """Return the page."""
    parts = [f"## {name}\n\n```log\n{text}\n```\n" for name, text in helps()]
    return "\n".join([HEAD, *parts])


def written() -> str:
    """Return the file of helps."""
    found = dict(helps()) | {verb: help_of(verb) for verb in INSIDE}
    return json.dumps({name: text.splitlines() for name, text in found.items()}, indent=1) + "\n"


def test_the_page_is_what_help_prints() -> None:
    assert PAGE.read_text() == page(), "write it anew: python -m tests.meta.test_commands_page"


def test_what_is_written_down_is_what_the_verbs_print() -> None:
    assert WRITTEN.read_text() == written(), "write it: python -m tests.meta.test_commands_page"


def test_a_help_imports_neither_jax_nor_numpy(subtests: pytest.Subtests) -> None:
    """No timing decides: what takes long is to import them."""
    commands = [("-m", "vit_jax", verb, "--help") for verb in VERBS]
    commands += [
        ("-m", "vit_jax", verb, inside, "-h") for verb in INSIDE for inside in INSIDE[verb]
    ]
    commands += [("-m", "vit_jax", "--help"), ("-m", "vit_jax", "--version")]
    commands += [("-c", "import vit_jax; dir(vit_jax)")]
    for command in commands:
        with subtests.test(" ".join(command)):
            told = imported(*command)
            assert int(told[-1]) < 120, "modules"
            assert told[:-1] == []


def test_the_help_of_main_imports_neither_jax_nor_numpy() -> None:
    *heavy, _ = imported("main.py", "--help")
    assert heavy == ["absl", "ml_collections", "yaml"]  # by which it reads its flags


def imported(*command: str) -> list[str]:
    """Return the heavy libraries that a command imports, and the number of all modules."""
    done = subprocess.run(
        [sys.executable, "-c", IMPORTED, *command], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()[-1].split()


if __name__ == "__main__":
    PAGE.write_text(page())
    WRITTEN.write_text(written())
