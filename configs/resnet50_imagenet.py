# SPDX-License-Identifier: Apache-2.0
r"""ResNet-50 on ImageNet-1k from scratch, as the baseline of the RegNet paper.

    python main.py --config=configs/resnet50_imagenet.py --workdir=DIR

Hardware: batch 256; one GPU of 40 GB, or 8 of 16 GB (14.8 hours on 8 V100 to its authors).
Published: 76.8 % top-1 at 224 (facebookresearch/pycls MODEL_ZOO). That says that all runs on 8 GPUs
had 5 epochs of warmup; the file of this one, R-50-1x64d_dds_8gpu.yaml, has none, as here.
"""

from configs.recipes import regnet
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return regnet.imagenet(models.variant("resnet50"), batch_size=256, warmup_epochs=0)
