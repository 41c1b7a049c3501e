# SPDX-License-Identifier: Apache-2.0
r"""LeJEPA without labels: a ViT-L/14 on ImageNet-1k, or a ViT-S/8 on ImageNette.

    python main.py --config=configs/lejepa_imagenet.py:l14 --workdir=runs/lejepa_l14
    python main.py --config=configs/lejepa_imagenet.py:s8_imagenette \
        --config.data.name=folder:PATH --workdir=runs/lejepa_s8
    vit_jax probe --from=runs/lejepa_l14 --methods=knn,logistic --test_split=validation

l14 is the README's of rbalestr-lab/lejepa, s8_imagenette its MINIMAL.md's, PATH the folder of
fast.ai's imagenette2-160.
Runs: l14, s8_imagenette
Hardware: l14 batch 512, as one of DINOv2 without its teacher; s8_imagenette batch 256, one GPU, the
authors 200 minutes.
Published: s8_imagenette 90.7 % linear top-1 (MINIMAL.md); of l14 accuracies on other datasets
(README), none on ImageNet.
"""

from vit_jax import Config
from vit_jax.recipes import dino

RUNS = dino.LEJEPA


def get_config(run: str = "l14") -> Config:
    return dino.lejepa(run)
