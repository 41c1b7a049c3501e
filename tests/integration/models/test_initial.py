# SPDX-License-Identifier: Apache-2.0
"""Initial values that are drawn in pieces are those of the jitted initialisation, to the bit.

In a process of its own: by the flags of the tests XLA folds other constants in a small program than
in a large one.
"""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.unit.models.test_initial import made
from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.models import ModelConfig, initial

ROOT = Path(__file__).parents[3]
# Families of every initialiser: in a loop, by stages, of convolutions.
FAMILIES: dict[str, Any] = {
    "vit": TINY["vit"],
    "swin": dataclasses.replace(TINY["swin"], depths=(1, 1)),
    "resnet": TINY["resnet"],
}


def values(cfg: ModelConfig, key: jax.Array) -> dict[str, jax.Array]:
    params, state = models.init(models.create(cfg), cfg, key)
    return dict(trees.named_leaves({"params": params, **state}))


def compare(name: str, found: dict[str, np.ndarray], whole: dict[str, jax.Array]) -> None:
    """Print the first array that differs, or that none does."""
    assert found.keys() == whole.keys()
    differs = [x for x in whole if not np.array_equal(found[x], whole[x])]
    print(name, differs[0] if differs else "equal", flush=True)


def run() -> None:
    """Compare families' values, in arrays of several pieces and of a part of one."""
    key = jax.random.key(5)
    compare("made", initial.drawn(made, key), jax.jit(made)(key))
    initial._PIECE = 1000
    initial._bits.clear_cache()
    for name, cfg in FAMILIES.items():
        looped = models.looped(cfg)
        found = initial.drawn(lambda key, cfg=looped: values(cfg, key), key)
        compare(name, found, jax.jit(lambda key, cfg=cfg: values(cfg, key))(key))


def test_families() -> None:
    env = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    out = subprocess.run(
        [sys.executable, "-m", "tests.integration.models.test_initial"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    assert out.returncode == 0, out.stderr
    found = dict(line.rsplit(" ", 1) for line in out.stdout.splitlines())
    assert found == dict.fromkeys(("made", *FAMILIES), "equal")


if __name__ == "__main__":
    run()
