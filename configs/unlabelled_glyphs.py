# SPDX-License-Identifier: Apache-2.0
r"""ViT-Ti on 20,000 drawn letters without their labels, and on 400 with.

    python -m benchmarks.glyphs runs/glyphs
    python main.py --config=configs/unlabelled_glyphs.py:mae --workdir=runs/glyphs_mae
    python main.py --config=configs/unlabelled_glyphs.py:labelled \
        --config.init.weights=ckpt:runs/glyphs_mae --workdir=runs/glyphs_finetuned

The third command fine-tunes it on 400 labels; without `init.weights` it trains from scratch.
Runs: mpp, mae, dino, lejepa, ijepa, labelled
Hardware: a CPU core, five to ten minutes; labelled two.
Published: none; `python -m benchmarks.self_supervised glyphs` measures docs/self_supervised.md.
"""

from vit_jax import Config
from vit_jax.recipes import unlabelled

RUNS = tuple(unlabelled.GLYPHS)


def get_config(run: str = "mae") -> Config:
    return unlabelled.glyphs(run)
