# SPDX-License-Identifier: Apache-2.0
r"""ViT-S/16 on ImageNet-1k by any objective, from one start: an arm of the referee.

    vit_jax sweep plan configs/sweeps/referee_imagenet.py --device=H100 --num_devices=8
    python main.py --config=configs/referee_imagenet.py:mae --workdir=runs/referee_mae

The sweep trains all arms for the same FLOPs, which sets their duration; alone, an arm takes as long
as its recipe.
Runs: mpp, mae, dino, ibot, dinov2, gram, lejepa, ijepa, supervised
Hardware: eight H100s or a TPU v5e-16; `sweep plan` has the hours.
Published: none of these settings; not run.
"""

from vit_jax import Config
from vit_jax.recipes import referee

RUNS = referee.ARMS


def get_config(run: str = "mae") -> Config:
    return referee.imagenet(run)
