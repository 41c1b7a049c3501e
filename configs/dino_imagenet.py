# SPDX-License-Identifier: Apache-2.0
r"""Self-distillation on ImageNet-1k without labels: DINO's ViT-S/16, DINOv2's and v3's ViT-L/16.

    python main.py --config=configs/dino_imagenet.py:dino --workdir=runs/dino_s16
    vit_jax probe --from=runs/dino_s16 --methods=knn,logistic --test_split=validation

dinov2 is its repository's vitl16_short.yaml, dinov3 its vitl_im1k_lin834.yaml, dinov3_gram the same
with Gram anchoring in its last fifth.
Runs: dino, dino_300, dinov2, dinov3, dinov3_gram
Hardware: dino batch 512, the authors 8 GPUs for 1.75 days; dino_300 batch 1,024, 16 GPUs for 2.6
days; dinov2 and dinov3 batch 2,048, 32 A100 of 80 GB or H100 for less than a day.
Published: k-NN and linear top-1, dino 69.3 % and 73.8 %, dino_300 73.3 % and 76.1 %
(facebookresearch/dino README); dinov2 81.6 % and 82.9 % (its README); dinov3 82.2 % and 83.3 %
(vitl_im1k_lin834.yaml).
"""

from vit_jax import Config
from vit_jax.recipes import dino

RUNS = tuple(dino.RUNS)


def get_config(run: str = "dino") -> Config:
    return dino.imagenet(run)
