# SPDX-License-Identifier: Apache-2.0
r"""ViT Ti to G on ImageNet-21k: sizes x images seen, as in "Scaling Vision Transformers".

    vit_jax sweep plan configs/sweeps/scaling_imagenet.py --device=v5e --num_devices=256
    vit_jax sweep run configs/sweeps/scaling_imagenet.py --out=/mnt/shared/sweep \
        --config.data.name=folder:/data/imagenet21k

Zhai et al. 2021 (arXiv:2106.04560) train each size once, at a learning rate that goes with
1/sqrt(step), and cool it down from several steps on; here each length is a run of its own, so that
any of them can be done first. Their data, JFT-3B, are not public: 30 epochs of ImageNet-21k are the
longest run, and larger models will want more images than it has. Adafactor with half-precision
momentum as there. Patch 14 from H on, 16 below.
"""

from collections.abc import Iterator

from vit_jax import models
from vit_jax.sweeps import grid

CONFIG = "configs/vit_b16_imagenet21k.py"
METRIC = "val/loss"

SIZES = ("vit_ti16", "vit_s16", "vit_b16", "vit_l16", "vit_h14", "vit_g14", "vit_G14")
EXAMPLES = grid.log_spaced(1e7, 3.8e8, 5)
SHAPE = ("patch", "dim", "depth", "num_heads", "mlp_dim")

RECIPE = {
    "optim.name": "adafactor",
    "optim.momentum": 0.9,
    "optim.beta2": 0.999,
    "optim.lr": 8e-4,
    "optim.schedule": "rsqrt",
    "optim.warmup": "10%",
    "optim.cooldown": "20%",
    "evals.val.every": "20%",
    "checkpoint.every": "5%",
}


def sweep() -> Iterator[grid.Overrides]:
    for name in SIZES:
        model = models.variant(name)
        shape = {f"model.{field}": getattr(model, field) for field in SHAPE}
        for count in EXAMPLES:
            yield {
                "name": f"{name} examples={count:.3g}",
                **shape,
                **RECIPE,
                "duration": f"{count:.0f} examples",
            }
