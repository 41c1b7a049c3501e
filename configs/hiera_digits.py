# SPDX-License-Identifier: Apache-2.0
r"""A small Hiera on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/hiera_digits.py --workdir=runs/hiera_digits

Hardware: 2 CPU cores, about five minutes.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    shape = {"dim": 32, "depths": (2, 2), "num_heads": (2, 4), "local_stages": 1}
    return digits.digits(digits.small("hiera_t", **shape))
