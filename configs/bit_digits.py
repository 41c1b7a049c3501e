# SPDX-License-Identifier: Apache-2.0
r"""A small BiT on scikit-learn's handwritten digits (1,797 real scans), by BiT's own optimizer.

    python main.py --config=configs/bit_digits.py --workdir=runs/bit_digits

Hardware: 2 CPU cores, about two minutes.
Published: none.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config
from vit_jax.optim import OptimConfig, Optimizer, Schedule


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "bit_r50x1",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        depths=(1, 1),
        widths=(64, 128),
        stem_width=32,
        num_groups=8,
    )
    config.optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.1,
        schedule=Schedule.STEP,
        warmup="5%",
        weight_decay=1e-3,  # what BiT's 1e-4 adds up to with the momentum
    )
    return config
