# SPDX-License-Identifier: Apache-2.0
r"""ViT-B/16 pretrained on ImageNet-21k: AugReg (arXiv:2106.10270), medium augmentation.

    python main.py --config=configs/vit_b16_imagenet21k.py --workdir=DIR \
        --config.data.name=folder:/data/imagenet21k --config.data.train_split="train[51200:]"

Hardware: batch 4,096, 300 epochs of 12.7 million images; a TPU v3-256 slice for about 3 days.
ImageNet-21k is not redistributed by TFDS: point data.name at a folder of images, one sub-folder a
class, or at your own TFDS dataset; the class count is checked before anything starts.
Published: 84.53 % top-1 at 224 and 86.01 % at 384 after fine-tuning on ImageNet-1k, from the
checkpoint B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0
(timm's vit_base_patch16_{224,384}.augreg_in21k_ft_in1k; 85.49 % at 384 in the authors' README).
"""

import math

from vit_jax import CheckpointConfig, Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    model = models.variant("vit_b16", num_classes=21843)
    config = google.augreg(model, "medium1")
    model.head_bias = -math.log(21843)
    config.data.name, config.data.train_split = "imagenet21k", "train[51200:]"
    val = config.evals["minival"]
    val.split = "train[:51200]"
    config.evals = {"val": val}
    config.checkpoint = CheckpointConfig(every="1000 steps")
    return config
