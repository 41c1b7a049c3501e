# SPDX-License-Identifier: Apache-2.0
"""A run whose class has a hostile name, and a home whose every file is known."""

from pathlib import Path

import pytest

from tests.faults import painted
from tests.faults.strangers.given import EVIL
from vit_jax.train.loop import fit


@pytest.fixture(scope="package")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a moment, of a class whose name is hostile."""
    root = tmp_path_factory.mktemp("stranger")
    for name in (EVIL.replace("/", ""), "plain"):
        for split in ("train", "val"):
            painted.paint(root / "data" / split / name, (0, 80, 200))
    cfg = painted.get_config(str(root / "data"))
    cfg.duration = "2 steps"
    assert fit(cfg, root / "run").status == 0
    return root / "run"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home whose every file is known, and the current directory in it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path / "mine")
    return tmp_path
