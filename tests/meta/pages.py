# SPDX-License-Identifier: Apache-2.0
"""README and docs as their blocks of code, and those of a shell as commands."""

import dataclasses
import os
import re
import shlex
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text() for page in PAGES}


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its page, language and text."""

    page: str
    language: str
    text: str


@dataclasses.dataclass(frozen=True)
class Command:
    """One shell command of a page, as words."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {' '.join(self.words)[:60]}"


def blocks(page: str) -> list[Block]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", TEXTS[page], re.MULTILINE | re.DOTALL)
    return [Block(page, language, text) for language, text in found]


def by_python(words: list[str]) -> list[str]:
    return ["python", "-m", *words] if words[:1] == ["vit_jax"] else words


def commands(block: Block) -> list[Command]:
    """Split a shell block; a command may go on over lines by a backslash or an open quote.

    `vit_jax VERB` is read as `python -m vit_jax VERB`, which runs without an installed script.
    """
    found, pending = [], ""
    for line in block.text.splitlines():
        if line.endswith("\\"):
            pending += line[:-1] + " "
            continue
        pending += line
        try:
            words = shlex.split(pending, comments=True)
        except ValueError:  # an open quote
            pending += "\n"
            continue
        found += [Command(block.page, tuple(by_python(words)))] if words else []
        pending = ""
    assert not pending, f"{block.page}: cannot read {pending!r}"
    return found


SHELL = [b for page in TEXTS for b in blocks(page) if b.language in ("sh", "bash")]
COMMANDS = [command for block in SHELL for command in commands(block)]


def python_of(page: str) -> str:
    (code,) = [b.text for b in blocks(page) if b.language == "python"]
    return code


def make(*args: str) -> str:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    out = subprocess.run(["make", *args], cwd=ROOT, env=env, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr
    return out.stdout
