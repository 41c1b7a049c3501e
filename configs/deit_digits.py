# SPDX-License-Identifier: Apache-2.0
r"""A small distilled DeiT, class and distillation token, on scikit-learn's handwritten digits.

    python main.py --config=configs/deit_digits.py --workdir=runs/deit_digits

Hardware: 2 CPU cores, about a minute.
Published: none; a small run to try and to test with.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    return digits.digits(digits.deit())
