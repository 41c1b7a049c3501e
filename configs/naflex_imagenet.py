# SPDX-License-Identifier: Apache-2.0
r"""A ViT on ImageNet-1k whose images keep their shapes, in rows of 128 to 1,024 patches.

    python main.py --config=configs/naflex_imagenet.py:b16 --workdir=DIR
    python main.py --config=configs/naflex_imagenet.py:b16_packed --workdir=DIR

`b16` is timm's naflexvit_base_patch16_gap, each step at one of five lengths; `b16_packed` has
images of their own sizes, several to a row; `siglip` fine-tunes the tower of SigLIP 2 NaFlex.
Runs: b16, b16_packed, siglip
Hardware: batch 1,024, at 1,024 patches some 16 GPUs of 80 GB (an estimate: `--dry_run` has it).
Published: none of these recipes; timm's naflexvit_base_patch16_gap.e300_s576_in1k has learned 300
epochs by one that is not written down.
"""

from vit_jax import Config
from vit_jax.recipes import naflex

RUNS = naflex.IMAGENET


def get_config(run: str = "b16") -> Config:
    return naflex.imagenet(run)
