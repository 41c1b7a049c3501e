# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 on ImageNet-1k without labels, by masked patch prediction: the ViT paper's own.

    python main.py --config=configs/vit_b16_imagenet_mpp.py --workdir=runs/mpp_b16
    python main.py --config=configs/finetune_vit.py:imagenet2012 \
        --config.init.weights=ckpt:runs/mpp_b16 --config.init.skip="('^head',)" --workdir=DIR

Hardware: batch 4,096; a TPU v3-64 slice or 32 GPUs of 40 GB (--config.accum_steps=8 on 8).
Published: 79.9 % top-1 after fine-tuning at 384, from 1M steps on JFT (arXiv:2010.11929 appendix
B.1.2), 2 points above training from scratch; on ImageNet "similar gains", without a number.
"""

from vit_jax import Config, models
from vit_jax.recipes import masked


def get_config() -> Config:
    return masked.patches(models.variant("vit_b16"))
