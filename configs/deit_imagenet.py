# SPDX-License-Identifier: Apache-2.0
r"""DeiT on ImageNet-1k from scratch, without distillation, and its fine-tuning at 384.

    python main.py --config=configs/deit_imagenet.py:s16 --workdir=DIR

    curl -L -o deit_base_patch16_224.fb_in1k.safetensors \
    https://huggingface.co/timm/deit_base_patch16_224.fb_in1k/resolve/main/model.safetensors
    python main.py --config=configs/deit_imagenet.py:b16_384 --workdir=DIR

From a run of one's own: --config.init.weights=ckpt:runs/deit_b16_imagenet.
Runs: ti16, s16, b16, b16_384
Hardware: batch 1,024; Ti 4 GPUs of 16 GB (the authors: 4, of 256 images each), S 8 GPUs of 40 GB or
a TPU v3-8 (the authors: 4 V100, 2 to 3 days), B 16 GPUs of 32 GB or a TPU v3-16 (the authors: 16
V100), also at 384 with batch 512.
Published: top-1 at 224, Ti 72.2 %, S 79.8 %, B 81.8 % (arXiv:2012.12877; S 79.9 % the authors'
README; timm's deit_tiny, small and base_patch16_224.fb_in1k 72.19 %, 79.86 % and 81.98 %). B at
384: 82.9 % (facebookresearch/deit README_deit; 83.1 % the paper; 83.11 % timm's
deit_base_patch16_384.fb_in1k). The authors report the raw weights, not their average.
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, deit

RUNS = ("ti16", "s16", "b16", "b16_384")


def get_config(run: str = "s16") -> Config:
    model = models.variant(f"deit_{choose('run', run, RUNS)}")
    if run == "b16_384":
        return deit.finetune(model, "timm:deit_base_patch16_224.fb_in1k.safetensors")
    return deit.imagenet(model)
