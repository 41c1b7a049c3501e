# SPDX-License-Identifier: Apache-2.0
r"""A small RegNetY on scikit-learn's handwritten digits (1,797 real scans), by RegNet's optimizer.

    python main.py --config=configs/regnet_digits.py --workdir=runs/regnet_digits

Hardware: 2 CPU cores, about three minutes.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    return digits.by_sgd(digits.regnet())
