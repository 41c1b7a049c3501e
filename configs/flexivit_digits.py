# SPDX-License-Identifier: Apache-2.0
r"""One small ViT for five patch sizes on scikit-learn's handwritten digits, and ViTs of one size.

    python main.py --config=configs/flexivit_digits.py --workdir=runs/flexivit_digits
    python main.py --config=configs/flexivit_digits.py:8 --workdir=runs/vit8_digits

Each is evaluated at patches of 6, 8, 12, 16 and 24 pixels of 48 (docs/flexivit.md); the argument is
the one size that training has.
Runs: flexi, 8, 16
Hardware: a CPU core, two minutes.
Published: none; arXiv:2212.08013 figure 3 is of ImageNet.
"""

from vit_jax import Config
from vit_jax.recipes import choose, flexivit

RUNS = ("flexi", "8", "16")


def get_config(patch: str = "flexi") -> Config:
    return flexivit.digits(choose("patch", patch, RUNS))
