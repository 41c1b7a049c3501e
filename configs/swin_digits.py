# SPDX-License-Identifier: Apache-2.0
r"""A small Swin Transformer on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/swin_digits.py --workdir=runs/swin_digits

Hardware: 2 CPU cores, about five minutes.
Published: none.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "swin_t",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        dim=32,
        depths=(2, 2),
        num_heads=(2, 4),
        window=(4,),
    )
    return config
