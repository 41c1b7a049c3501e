# SPDX-License-Identifier: Apache-2.0
"""A run of moments on images of one grey each, so that a test decides what is in which batch."""

import dataclasses
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from PIL import Image

from vit_jax import models
from vit_jax.checkpoints import reader
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.order import epoch_order
from vit_jax.data.sources.folders import open_folder
from vit_jax.devices.sharding import MeshConfig
from vit_jax.optim import OptimConfig

BATCH = 2


def paint(folder: Path, levels: Iterable[int]) -> None:
    """Write one image of each level, 0 (black) to 255, to folder/0.png and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, level in enumerate(levels):
        Image.new("L", (16, 16), level).save(folder / f"{i}.png")


def get_config(root: str) -> Config:
    """Train on the folder `root`, of classes a and b, without anything random."""
    model = models.variant(
        "vit_mu8", image_size=(16, 16), channels=1, patch=(8, 8), dim=16, depth=1, num_heads=2
    )
    return Config(
        model=dataclasses.replace(model, mlp_dim=32, num_classes=2, scan_unroll=1),
        data=DataConfig(
            name=f"folder:{root}",
            train_split="train",
            batch_size=BATCH,
            transform=TransformConfig(crop=Crop.RESIZE),
            mean=(0.0,),
        ),
        optim=OptimConfig(lr=1e-2),
        duration="6 steps",
        ema_decay=0.5,
        mesh=MeshConfig(data=1),
        checkpoint=CheckpointConfig(every="1 steps", keep=10, keep_best=0),
        log=LogConfig(every="1 steps", tensorboard=False),
    )


def seed_for(root: Path, image: str, steps: Iterable[int]) -> tuple[int, int]:
    """Return a seed that brings one image in one of the steps, and which of them."""
    source = open_folder(str(root), "train")
    names = [source.example_id(i) for i in range(len(source))]
    example = next(i for i, name in enumerate(names) if name.endswith(image))
    for seed in itertools.count():
        place = np.argmax(epoch_order(len(source), seed, 0) == example)
        if place // BATCH + 1 in steps:
            return seed, int(place) // BATCH + 1
    raise AssertionError


def arrays(workdir: Path, step: int) -> dict[str, np.ndarray]:
    """Read all but the random key of a checkpoint."""
    saved = reader.find(workdir, str(step))
    return reader.load(saved, [name for name in saved.manifest.leaves if name != "rng"])


def changed(workdir: Path, before: int, after: int) -> set[str]:
    """Name what differs in a bit between the checkpoints of two steps."""
    old, new = arrays(workdir, before), arrays(workdir, after)
    assert old.keys() == new.keys()
    return {name for name in old if old[name].tobytes() != new[name].tobytes()}
