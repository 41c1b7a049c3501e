# SPDX-License-Identifier: Apache-2.0
r"""I-JEPA on ImageNet-1k without labels: ViT-H/14 of 224 pixels, ViT-H/16 of 448.

    python main.py --config=configs/ijepa_imagenet.py:h14 --workdir=runs/ijepa_h14
    vit_jax probe --from=runs/ijepa_h14 --methods=knn,logistic --test_split=validation

Runs: h14, h16_448
Hardware: batch 2,048; the authors 16 A100 of 80 GB, less than 72 hours for h14.
Published: linear top-1 79.3 % (h14) and 81.1 % (h16_448), arXiv:2301.08243 table 1.
"""

from vit_jax import Config
from vit_jax.recipes import dino

RUNS = dino.IJEPA


def get_config(run: str = "h14") -> Config:
    return dino.ijepa(run)
