# SPDX-License-Identifier: Apache-2.0
"""Models with random weights to export, and a process that has nothing of this package."""

import functools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from tests.unit.models.tiny import TINY
from vit_jax import models, trees
from vit_jax.data import TransformConfig
from vit_jax.inference.forward import make_forward
from vit_jax.inference.trained import Trained, named
from vit_jax.models import ModelConfig

_shapes: dict[str, Any] = {}


def shapes(cfg: ModelConfig) -> Any:
    """Return `models.abstract(cfg)`, traced once: dozens of tests ask for the same few models."""
    key = repr(cfg)
    if key not in _shapes:
        _shapes[key] = models.abstract(cfg)
    return _shapes[key]


def trained(cfg: ModelConfig, **fields) -> Trained:
    rng = np.random.default_rng(0)

    def draw(name: str, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        values = rng.normal(size=leaf.shape).astype(np.float32) / 2
        return values if name.startswith("params/") else np.abs(values)  # a variance may be

    known = {
        "ref": "npz:made_up.npz",
        "source": "npz:made_up.npz",
        "variables": trees.map_named(draw, shapes(cfg)),
        "mean": (0.5, 0.4, 0.3)[: cfg.channels],
        "std": (0.25,),
        "transform": TransformConfig(),
        "class_names": named((), cfg),
    }
    return Trained(model=cfg, **{**known, **fields})


def images(model: Trained, count: int = 3) -> np.ndarray:
    shape = (count, *model.image_size, model.channels)
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@functools.cache
def of_family(family: str) -> tuple[Trained, np.ndarray, np.ndarray]:
    """Return a tiny model, three images and their logits."""
    model = trained(TINY[family])
    return model, images(model), np.asarray(make_forward(model)(images(model)).logits)


def assert_close(found: np.ndarray, expected: np.ndarray, tolerance: float = 2e-6) -> None:
    """Compare to float32 rounding, of the largest logit."""
    assert expected.std() > 1e-2, "logits too flat to tell a mistake"
    scale = max(1.0, np.abs(expected).max())
    np.testing.assert_allclose(found / scale, expected / scale, atol=tolerance, rtol=0)


_ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vit_jax", "flax", "einops", "orbax", "optax"):
            raise ImportError(name + " is not here")
sys.meta_path.insert(0, Blocked())
"""


def run_alone(code: str, folder: Path) -> None:
    """Run code in a process that can import jax, but neither this package nor flax."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", _ALONE + code],
        cwd=folder,
        env=os.environ,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
