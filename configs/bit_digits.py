# SPDX-License-Identifier: Apache-2.0
r"""A small BiT on scikit-learn's handwritten digits (1,797 real scans), by BiT's own optimizer.

    python main.py --config=configs/bit_digits.py --workdir=runs/bit_digits

Hardware: 2 CPU cores, about two minutes.
Published: none.
"""

from vit_jax import Config, OptimConfig, Optimizer, Schedule
from vit_jax.recipes import digits


def get_config() -> Config:
    shape = {"depths": (1, 1), "widths": (64, 128), "stem_width": 32, "num_groups": 8}
    config = digits.digits(digits.small("bit_r50x1", **shape))
    config.optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.1,
        schedule=Schedule.STEP,
        warmup="5%",
        weight_decay=1e-3,  # the sum of BiT's 1e-4 over the momentum
    )
    return config
