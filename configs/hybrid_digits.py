# SPDX-License-Identifier: Apache-2.0
r"""A small hybrid of ResNet and ViT on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/hybrid_digits.py --workdir=runs/hybrid_digits

Hardware: 2 CPU cores, about three minutes.
Published: none.
"""

from vit_jax import Config, OptimConfig
from vit_jax.recipes import digits


def get_config() -> Config:
    model = digits.small(
        "r50_vit_b16",
        dim=64,
        depth=2,
        num_heads=4,
        mlp_dim=256,
        backbone_depths=(1,),
        backbone_widths=(64,),
        stem_width=32,
        num_groups=8,
    )
    config = digits.digits(model)
    config.optim = OptimConfig(lr=1e-3, weight_decay=0.1, warmup="5 epochs")
    config.duration = "40 epochs"
    return config
