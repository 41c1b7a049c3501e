# SPDX-License-Identifier: Apache-2.0
r"""ViT-L/16 on ImageNet-1k from scratch, as the ViT paper trained it.

    python main.py --config=configs/vit_l16_imagenet.py --workdir=DIR

Hardware: batch 4,096; a TPU v3-128 slice or 64 GPUs of 40 GB (--config.model.remat=dots and
--config.accum_steps for fewer; --config.mesh.fsdp=8 shards parameters and moments).
Published: 76.53 % top-1 after fine-tuning at 384 (arXiv:2010.11929 table 5): on ImageNet-1k alone
it does worse than ViT-B/16, as the paper says.
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.vit_paper(models.variant("vit_l16"))
