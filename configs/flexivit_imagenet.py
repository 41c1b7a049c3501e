# SPDX-License-Identifier: Apache-2.0
r"""FlexiViT on ImageNet-1k: one ViT for patches of 8 to 48 pixels at 240, taught by DeiT III.

    curl -L -o deit3_small_patch16_384.fb_in1k.safetensors \
    https://huggingface.co/timm/deit3_small_patch16_384.fb_in1k/resolve/main/model.safetensors
    python main.py --config=configs/flexivit_imagenet.py:s --workdir=DIR

The student starts from its teacher; both are the file's (of `b` and `l` deit3_base_patch16_384 and
deit3_large_patch16_384). The published networks have learned longer:
--config.duration="1200 epochs".
Runs: s, b, l
Hardware: batch 1,024; S on a TPU v3-32 slice, 90 epochs in 10 hours with evaluations (the authors).
Published: none of 90 epochs by text; arXiv:2212.08013 has the accuracies of 1,200 by patch size.
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, flexivit

RUNS = ("s", "b", "l")


def get_config(size: str = "s") -> Config:
    choose("size", size, RUNS)
    return flexivit.imagenet(models.variant(f"flexivit_{size}"))
