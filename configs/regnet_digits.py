# SPDX-License-Identifier: Apache-2.0
r"""A small RegNetY on scikit-learn's handwritten digits (1,797 real scans), by RegNet's optimizer.

    python main.py --config=configs/regnet_digits.py --workdir=runs/regnet_digits

Hardware: 2 CPU cores, about three minutes.
Published: none.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config
from vit_jax.optim import OptimConfig, Optimizer


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    # Five blocks in three stages: 32, 64 and three of 128 channels.
    config.model = models.variant(
        "regnety_200mf",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        depth=5,
        w0=32,
        wa=32.0,
        wm=2.0,
        group_width=32,
    )
    config.optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.05,
        warmup="5%",
        nesterov=True,
        weight_decay=5e-4,  # what RegNet's 5e-5 adds up to with the momentum
    )
    config.duration = "40 epochs"
    return config
