# SPDX-License-Identifier: Apache-2.0
r"""A small hybrid of ResNet and ViT on scikit-learn's handwritten digits (1,797 real scans).

    python main.py --config=configs/hybrid_digits.py --workdir=runs/hybrid_digits

Hardware: 2 CPU cores, about three minutes.
Published: none.
"""

from configs import vit_mu_digits
from vit_jax import models
from vit_jax.config import Config
from vit_jax.optim import OptimConfig


def get_config() -> Config:
    config = vit_mu_digits.get_config()
    config.model = models.variant(
        "r50_vit_b16",
        num_classes=10,
        image_size=(32, 32),
        channels=1,
        dim=64,
        depth=2,
        num_heads=4,
        mlp_dim=256,
        backbone_depths=(1,),
        backbone_widths=(64,),
        stem_width=32,
        num_groups=8,
    )
    config.optim = OptimConfig(lr=1e-3, weight_decay=0.1, warmup="5 epochs")
    config.duration = "40 epochs"
    return config
