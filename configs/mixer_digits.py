# SPDX-License-Identifier: Apache-2.0
r"""A small MLP-Mixer on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/mixer_digits.py --workdir=runs/mixer_digits

Hardware: 2 CPU cores, about two minutes.
Published: none.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "mixer_s16",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        patch=(8, 8),
        dim=64,
        depth=4,
        token_mlp_dim=32,
        channel_mlp_dim=256,
    )
    return config
