# SPDX-License-Identifier: Apache-2.0
r"""A small ResNet on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/resnet_digits.py --workdir=runs/resnet_digits

Hardware: 2 CPU cores, about two minutes.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    return digits.by_sgd(digits.resnet())
