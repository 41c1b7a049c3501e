# SPDX-License-Identifier: Apache-2.0
"""Names and files that a stranger may give, and commands that are given them."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from tests.unit.sweeps.test_point import POINT
from vit_jax import __main__
from vit_jax.sweeps import point

ROOT = Path(__file__).parents[3]
# Names of objects and in lists that would lead out of their folder, or confuse what reads them.
HOSTILE = (
    *("../escaped", "../../escaped", "a/../../../escaped", "a/../b", "./x", "a/./x", "a//x"),
    *("a\\..\\..\\escaped", "C:escaped", "~/escaped", "a/..", "a/\x1b[31mx", "a/\nx"),
)
EVIL = "\x1b[31m=1+1|<b>`$x$\u202e"
WITNESS = "import pathlib\npathlib.Path({!r}).touch()\n"


def command(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    status = __main__.main(["vit_jax", *map(str, words)])
    return status, *capsys.readouterr()


def refused(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Return the one line with which a command ends."""
    status, _, err = command(capsys, *words)
    lines = [line for line in err.splitlines() if line.startswith("error: ")]
    assert status in (2, 65, 66, 74), (status, err)
    assert len(lines) == 1, err
    assert lines[0].isprintable()
    return lines[0]


def outside(home: Path) -> list[str]:
    """List the files that are neither the person's cache nor in the folders of this test."""
    found = (str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())
    kept = ("cache/vit_jax/", "mine/", "data/", "sweep/", "given/")
    escaped = (str(path.relative_to(home)) for path in home.rglob("*escaped*"))
    left = [name for name in found if not name.startswith(kept)]
    return left + [name for name in escaped if not name.startswith(kept[0])]


def manifest_line(**fields: object) -> str:
    return json.dumps({**json.loads(point.to_line(POINT)), **fields})


def tar_of(members: dict[str, bytes]) -> bytes:
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w") as archive:
        for name, data in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(data)
            archive.addfile(about, io.BytesIO(data))
    return file.getvalue()
