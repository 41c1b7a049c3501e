# SPDX-License-Identifier: Apache-2.0
r"""DeiT III on ImageNet-1k from scratch, and its fine-tuning at a higher resolution.

    python main.py --config=configs/deit3_imagenet.py:b16 --workdir=runs/deit3_b16_imagenet
    python main.py --config=configs/deit3_imagenet.py:b16_224 --workdir=runs/deit3_b16_imagenet_224
    python main.py --config=configs/deit3_imagenet.py:b16_384 --workdir=runs/deit3_b16_imagenet_384

Each line starts from the workdir of the line before (S/16 has no second one, and H/14 no third);
--config.init.weights names another.
Runs: s16, s16_384, b16, b16_224, b16_384, l16, l16_224, l16_384, h14, h14_224
Hardware: batch 2,048; S/16 and B/16 8 GPUs of 32 GB, 256 images each, L/16 and H/14 32 GPUs, 64
images each, as the authors (H/14: --config.mesh.fsdp=8).
Published: top-1 at 224 and 384, S/16 81.4 % and 83.4 %, B/16 83.8 % and 85.0 %, L/16 84.9 % and
85.8 %, H/14 85.2 % at 224 (facebookresearch/deit README_revenge); timm's
deit3_small_patch16_224 and 384.fb_in1k 81.38 % and 83.43 %, base 83.80 % and 85.09 %, large
84.77 % and 85.82 %, huge_patch14_224 85.20 %.
"""

from vit_jax import Config
from vit_jax.recipes import choose, deit3

RUNS = deit3.RUNS


def get_config(run: str = "b16") -> Config:
    size, _, stage = choose("run", run, RUNS).partition("_")
    name = f"deit3_{size}"
    return deit3.finetune(name, stage) if stage else deit3.pretrain(name)
