# SPDX-License-Identifier: Apache-2.0
"""A checkpoint in a bucket counts no more from the moment that its deletion begins."""

from types import SimpleNamespace
from typing import Any

from vit_jax.checkpoints import copies


def test_the_mark_goes_first() -> None:
    """A deletion that is killed half-way leaves files that nobody takes for a checkpoint."""
    others = ["checkpoints/10.json", "checkpoints/10/state/d/0", "checkpoints/2.json"]
    own = ["checkpoints/1/state/d/0", "checkpoints/1.json", "checkpoints/1/!first"]
    removed: list[str] = []
    folder: Any = SimpleNamespace(names=lambda place: [*others, *own], remove=removed.extend)
    copies._remove(folder, "1")
    assert removed[0] == "checkpoints/1.json"
    assert sorted(removed) == sorted(own)
