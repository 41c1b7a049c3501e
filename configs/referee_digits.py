# SPDX-License-Identifier: Apache-2.0
r"""A small ViT on scikit-learn's digits by any objective, from one start: an arm of the referee.

    python -m benchmarks.referee digits
    python main.py --config=configs/referee_digits.py:mae --workdir=runs/referee_mae

The first command trains all arms for the same FLOPs, which sets their duration; alone, an arm takes
as long as its recipe.
Runs: mpp, mae, dino, ibot, dinov2, gram, lejepa, ijepa, supervised
Hardware: a CPU core, two minutes an arm.
Published: none; docs/self_supervised.md has what was measured.
"""

from vit_jax import Config
from vit_jax.recipes import referee

RUNS = referee.ARMS


def get_config(run: str = "mae") -> Config:
    return referee.digits(run)
