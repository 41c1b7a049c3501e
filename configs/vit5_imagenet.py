# SPDX-License-Identifier: Apache-2.0
r"""ViT-5 on ImageNet-1k from scratch, and its fine-tuning, also at a higher resolution.

    python main.py --config=configs/vit5_imagenet.py:b16 --workdir=runs/vit5_b16_imagenet
    python main.py --config=configs/vit5_imagenet.py:b16_384 --workdir=runs/vit5_b16_imagenet_384

The fine-tunings start from the averaged weights of the first line's workdir;
--config.init.weights names another.
Runs: s16, s16_224, b16, b16_224, b16_384, l16, l16_224, l16_384
Hardware: batch 2,048 over 8 GPUs of 80 GB, 256 images each, as the authors.
Published: top-1 at 224, S/16 82.2 %, B/16 84.2 %, L/16 84.9 %; at 384, B/16 85.4 % and L/16 86.0 %
(arXiv:2602.08071).
"""

from vit_jax import Config
from vit_jax.recipes import choose, vit5

RUNS = vit5.RUNS


def get_config(run: str = "b16") -> Config:
    size, _, side = choose("run", run, RUNS).partition("_")
    name = f"vit5_{size}"
    return vit5.finetune(name, side) if side else vit5.pretrain(name)
