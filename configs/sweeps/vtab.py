# SPDX-License-Identifier: Apache-2.0
r"""VTAB-1k: 19 tasks from one pretrained ViT, and the table of their scores.

    vit_jax sweep run configs/sweeps/vtab.py --out=runs/vtab
    vit_jax sweep report runs/vtab

Of another model: --config.model=vit_b16_384 --config.init.weights=npz:ViT-B_16.npz (or ckpt:DIR of
a run). Datasets are prepared once each: docs/reproduce.md.
"""

from collections.abc import Iterator

from vit_jax.recipes import vtab
from vit_jax.sweeps import grid

CONFIG = "configs/finetune_vtab.py:cifar100"
METRIC = "test/top1"


def sweep() -> Iterator[grid.Overrides]:
    for name, task in vtab.TASKS.items():
        yield {"name": f"{task.group}/{name}", "config": f"configs/finetune_vtab.py:{name}"}
