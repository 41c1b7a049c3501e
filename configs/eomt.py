# SPDX-License-Identifier: Apache-2.0
r"""EoMT on ADE20K (classes of pixels) and COCO (panoptic, instances), a plain ViT that segments.

    python main.py --config=configs/eomt.py:panoptic_l --workdir=runs/eomt_panoptic \
        --config.init.weights=timm:vit_large_patch14_reg4_dinov2.lvd142m.safetensors

The file: https://huggingface.co/timm/vit_large_patch14_reg4_dinov2.lvd142m
COCO's images and annotations of 2017 lie in coco/, ADE20K's in ADEChallengeData2016/.
Runs: ade20k_l, ade20k_l_dinov3, panoptic_s, panoptic_b, panoptic_l, panoptic_l_dinov3,
    instance_l, instance_l_dinov3
Hardware: four H100, six hours for panoptic_l (the authors'); not run here.
Published: mIoU 58.4, 59.5; PQ 46.7, 51.6, 56.0, 56.8; mask AP 45.2, 45.9 (tue-mps/eomt model_zoo/).
"""

from vit_jax import Config
from vit_jax.recipes import dense

RUNS = tuple(dense.EOMT)


def get_config(run: str = "panoptic_l") -> Config:
    return dense.eomt(run)
