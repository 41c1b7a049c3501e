# SPDX-License-Identifier: Apache-2.0
r"""A small ViT on scikit-learn's handwritten digits (1,797 real scans): the first run to try.

    python main.py --config=configs/vit_mu_digits.py --workdir=runs/digits

Hardware: 2 CPU cores, about two minutes.
Published: none; `python -m benchmarks.digits` measures test top-1 (README), where an RBF
support-vector machine reaches 96.4 % and k nearest neighbours 96.7 %.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    return digits.digits(digits.vit())
