# SPDX-License-Identifier: Apache-2.0
"""The lock files name one version of each package, and the digests of its files."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = re.compile(
    r"([\w.-]+)==([\w.+!-]+)[^\\]*\\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)"
)


@pytest.mark.parametrize(
    "name", ["requirements.txt", "locks/dev.txt", "locks/docs.txt", "locks/oldest.txt"]
)
def test_every_package_is_locked_with_hashes(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "--generate-hashes" in text.splitlines()[1]
    locked = [m[1] for m in PACKAGE.finditer(text)]
    wanted = [line for line in text.splitlines() if "==" in line and not line.startswith(" ")]
    assert len(locked) == len(wanted) >= 60
    for package in ("jax", "flax", "optax", "orbax-checkpoint", "ml-collections"):
        assert package in locked


def test_the_locks_of_one_environment_have_the_same_versions() -> None:
    run, dev, docs = (
        {m[1]: m[2] for m in PACKAGE.finditer((ROOT / name).read_text())}
        for name in ("requirements.txt", "locks/dev.txt", "locks/docs.txt")
    )
    assert {name: dev.get(name, version) for name, version in run.items()} == run
    assert {name: docs.get(name, version) for name, version in dev.items()} == dev
