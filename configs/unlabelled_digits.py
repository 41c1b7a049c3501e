# SPDX-License-Identifier: Apache-2.0
r"""A small ViT on scikit-learn's digits without their labels: from hidden patches, or a teacher.

    python main.py --config=configs/unlabelled_digits.py:mae --workdir=runs/unlabelled_mae
    python main.py --config=configs/tenth_digits.py:augmented \
        --config.init.weights=ckpt:runs/unlabelled_mae --workdir=runs/tenth_mae

The second command fine-tunes it on a tenth of the labels.
Runs: mpp, mae, dino, dinov2, lejepa, ijepa
Hardware: a CPU core, two minutes; dino, dinov2 and lejepa four to six.
Published: none; `python -m benchmarks.self_supervised digits` measures docs/self_supervised.md.
"""

from vit_jax import Config
from vit_jax.recipes import unlabelled

RUNS = tuple(unlabelled.RUNS)


def get_config(run: str = "mae") -> Config:
    return unlabelled.digits(run)
