# SPDX-License-Identifier: Apache-2.0
r"""BiT-R50x1 taught by BiT-R152x2 on ImageNet-1k: a patient and consistent teacher.

    curl -O https://storage.googleapis.com/bit_models/distill/R152x2_T_224.npz
    python main.py --config=configs/bit_r50x1_imagenet_distilled.py --workdir=DIR

Teacher and student see the same crop of the same mixed images, and the student learns the teacher's
whole distribution in a long run; the paper's longest is --config.duration="9600 epochs".
Hardware: batch 4,096; a TPU v3-32 slice, 300 epochs in about 15 hours (the authors).
Published: 82.8 % top-1 at 224, of the longest run (arXiv:2106.05237; google-research/big_vision
proj/distill README; 82.82 % timm's resnetv2_50x1_bit.goog_distilled_in1k). The teacher's: 83.0 %.
"""

from vit_jax import Config, models
from vit_jax.recipes import google


def get_config() -> Config:
    return google.function_matching(models.variant("bit_r50x1"))
