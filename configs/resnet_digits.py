# SPDX-License-Identifier: Apache-2.0
r"""A small ResNet on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/resnet_digits.py --workdir=runs/resnet_digits

Hardware: 2 CPU cores, about two minutes.
Published: none.
"""

from configs import regnet_digits
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = regnet_digits.get_config()
    config.model = models.variant(
        "resnet50",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        depths=(1, 1),
        widths=(64, 128),
        stem_width=32,
    )
    return config
