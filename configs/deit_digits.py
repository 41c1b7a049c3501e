# SPDX-License-Identifier: Apache-2.0
r"""A small distilled DeiT, class and distillation token, on scikit-learn's handwritten digits.

    python main.py --config=configs/deit_digits.py --workdir=runs/deit_digits

Hardware: 2 CPU cores, about a minute.
Published: none; a small run to try and to test with.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "deit_ti16_distilled",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        patch=(8, 8),
        dim=64,
        depth=4,
        num_heads=4,
        mlp_dim=256,
    )
    return config
