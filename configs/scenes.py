# SPDX-License-Identifier: Apache-2.0
r"""Masks, boxes and depth of letters drawn on photographs, on two cores in a minute each.

    python -m benchmarks.scenes runs/scenes
    python main.py --config=configs/scenes.py:letters --workdir=runs/scenes_letters
    python main.py --config=configs/scenes.py:eomt --workdir=runs/scenes_eomt

The first line draws the scenes, the second pretrains the encoder that all others start from.
Runs: letters, linear, linear_trained, eomt, instances, depth_linear, depth_dpt
Hardware: two cores, a minute.
Published: none. Measured: docs/segmentation.md, docs/detection.md, docs/depth.md.
"""

from vit_jax import Config
from vit_jax.recipes import scenes

RUNS = scenes.RUNS


def get_config(run: str = "eomt") -> Config:
    return scenes.scenes(run)
