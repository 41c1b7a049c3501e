# SPDX-License-Identifier: Apache-2.0
r"""Masks, boxes and depth of letters drawn on photographs, on two cores in a minute each.

    python -m benchmarks.scenes runs/scenes
    python main.py --config=configs/scenes.py:others --workdir=runs/scenes_others
    python main.py --config=configs/scenes.py:eomt --workdir=runs/scenes_eomt

The first line draws the scenes; the second pretrains, on other letters, the encoder that all other
runs start from.
Runs: others, linear, linear_trained, eomt, instances, depth_linear, depth_dpt
Hardware: two cores, a minute.
Published: none. Measured: docs/segmentation.md, docs/detection.md.
"""

from vit_jax import Config
from vit_jax.recipes import scenes

RUNS = scenes.RUNS


def get_config(run: str = "eomt") -> Config:
    return scenes.scenes(run)
