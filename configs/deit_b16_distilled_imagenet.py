# SPDX-License-Identifier: Apache-2.0
r"""DeiT-B with a distillation token on ImageNet-1k from scratch, taught by RegNetY-16GF.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/deit_b16_distilled_imagenet.py --workdir=DIR

The teacher's file is objective.distill.weights; the authors' own has the same weights and needs
torch to read: https://dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth.
The paper's best runs are longer: --config.duration="1000 epochs".
Hardware: batch 1,024; 16 GPUs of 32 GB or a TPU v3-16 (the authors: 16 V100).
Published: 83.4 % top-1 at 224 (facebookresearch/deit README_deit; 83.38 % timm's
deit_base_distilled_patch16_224.fb_in1k).
"""

from configs.recipes import deit
from vit_jax import models
from vit_jax.config import Config


def get_config() -> Config:
    return deit.distilled(models.variant("deit_b16_distilled"))
