# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 of ImageNet-21k fine-tuned on ImageNet-1k at 384, as the ViT paper does.

    curl -O https://storage.googleapis.com/vit_models/imagenet21k/ViT-B_16.npz
    python main.py --config=configs/finetune_imagenet_384.py --workdir=DIR

A file without the old head's first layer, such as AugReg's, needs --config.init.skip="('^head/',)".
The ImageNet rows of the paper's table 2 average the weights besides: --config.ema_decay=0.9999.
Hardware: batch 512 at 384; 8 GPUs of 40 GB or a TPU v3-8 (--config.accum_steps=8 on 8 of 16 GB).
Published: 83.97 % top-1 (arXiv:2010.11929 table 5; 84.53 % google-research/vision_transformer
README, in 6.5 hours on A100s).
"""

from configs.recipes import finetune
from vit_jax.config import Config


def get_config() -> Config:
    return finetune.vit("imagenet2012")
