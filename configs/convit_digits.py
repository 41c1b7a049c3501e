# SPDX-License-Identifier: Apache-2.0
r"""A small ConViT on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/convit_digits.py --workdir=runs/convit_digits

Hardware: 2 CPU cores, about two minutes.
Published: none; a run to try, whose test top-1 was 98.6 %.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "convit_ti",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        patch=(8, 8),
        depth=4,
        num_heads=4,
        head_dim=16,
        mlp_dim=256,
        local_up_to_layer=3,
    )
    return config
