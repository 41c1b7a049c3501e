# SPDX-License-Identifier: Apache-2.0
r"""The first half of a chain on scikit-learn's digits: a small ViT on the classes 0 to 4 alone.

    python main.py --config=configs/finetune_digits_pretrain.py \
        --workdir=runs/finetune_digits_pretrain

The second half is configs/finetune_digits.py.
Hardware: 2 CPU cores, half a minute.
Published: none; `python -m benchmarks.recipes` measures both halves (docs/reproduce.md).
"""

import dataclasses

from configs import tenth_digits, vit_mu_digits
from vit_jax.config import Config


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = dataclasses.replace(tenth_digits.VIT, num_classes=5)
    config.data.classes = (0, 1, 2, 3, 4)
    config.duration, config.optim.warmup = "60 epochs", "5%"
    return config
