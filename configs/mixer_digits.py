# SPDX-License-Identifier: Apache-2.0
r"""A small MLP-Mixer on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/mixer_digits.py --workdir=runs/mixer_digits

Hardware: 2 CPU cores, about two minutes.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import digits


def get_config() -> Config:
    shape = {"patch": (8, 8), "dim": 64, "depth": 4, "token_mlp_dim": 32, "channel_mlp_dim": 256}
    return digits.digits(digits.small("mixer_s16", **shape))
