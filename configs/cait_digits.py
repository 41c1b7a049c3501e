# SPDX-License-Identifier: Apache-2.0
r"""A small CaiT on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/cait_digits.py --workdir=runs/cait_digits

Hardware: 2 CPU cores, about two minutes.
Published: none; a run to try: 97.2 % test top-1.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    model = digits.small(
        "cait_xxs24",
        patch=(8, 8),
        dim=64,
        depth=4,
        num_heads=4,
        mlp_dim=256,
        token_mlp_dim=256,
        layer_scale=0.1,  # the paper's initial value for up to 18 blocks
    )
    return digits.digits(model)
