# SPDX-License-Identifier: Apache-2.0
r"""ViT-Ti on 20,000 drawn letters by any objective, from one start: an arm of the referee.

    python -m benchmarks.referee glyphs
    python main.py --config=configs/referee_glyphs.py:mae --workdir=runs/referee_mae

The first command draws the letters (the second needs `python -m benchmarks.glyphs runs/glyphs`) and
trains all arms for the same FLOPs, which sets their duration.
Runs: mpp, mae, dino, ibot, dinov2, gram, lejepa, ijepa, supervised
Hardware: a CPU core, four minutes an arm.
Published: none; docs/self_supervised.md has what was measured.
"""

from vit_jax import Config
from vit_jax.recipes import referee

RUNS = referee.ARMS


def get_config(run: str = "mae") -> Config:
    return referee.glyphs(run)
