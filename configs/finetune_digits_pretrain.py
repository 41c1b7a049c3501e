# SPDX-License-Identifier: Apache-2.0
r"""The first half of a chain on scikit-learn's digits: a small ViT on the classes 0 to 4 alone.

    python main.py --config=configs/finetune_digits_pretrain.py \
        --workdir=runs/finetune_digits_pretrain

The second half is configs/finetune_digits.py.
Hardware: 2 CPU cores, half a minute.
Published: none; `python -m benchmarks.recipes` measures both halves (docs/reproduce.md).
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    return digits.five(range(5))
