# SPDX-License-Identifier: Apache-2.0
r"""A small ConViT on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/convit_digits.py --workdir=runs/convit_digits

Hardware: 2 CPU cores, about two minutes.
Published: none; a run to try: 98.6 % test top-1.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    return digits.digits(digits.convit())
