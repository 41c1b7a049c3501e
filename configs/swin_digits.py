# SPDX-License-Identifier: Apache-2.0
r"""A small Swin Transformer on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/swin_digits.py --workdir=runs/swin_digits

Hardware: 2 CPU cores, about five minutes.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    shape = {"dim": 32, "depths": (2, 2), "num_heads": (2, 4), "window": (4,)}
    return digits.digits(digits.small("swin_t", **shape))
