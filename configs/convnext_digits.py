# SPDX-License-Identifier: Apache-2.0
r"""A small ConvNeXt V2 on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/convnext_digits.py --workdir=runs/convnext_digits

Hardware: 2 CPU cores, about five minutes.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    shape = {"depths": (2, 2), "widths": (32, 64)}
    return digits.digits(digits.small("convnextv2_atto", **shape))
