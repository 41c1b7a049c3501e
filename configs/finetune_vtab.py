# SPDX-License-Identifier: Apache-2.0
r"""ViT-L/16 pretrained on ImageNet-21k, fine-tuned on a task of VTAB-1k as in the ViT paper.

    curl -O https://storage.googleapis.com/vit_models/imagenet21k/ViT-L_16.npz
    python main.py --config=configs/finetune_vtab.py:cifar100 --workdir=DIR

All 19 are `vit_jax sweep run configs/sweeps/vtab.py`. Another model, there and here:
--config.model=vit_b16_384 --config.init.weights=npz:ViT-B_16.npz
Runs: caltech101, cifar100, dtd, flowers, pets, sun397, svhn,
camelyon, eurosat, resisc45, retinopathy,
clevr_count, clevr_distance, dmlab, dsprites_location, dsprites_orientation, kitti_distance,
smallnorb_azimuth, smallnorb_elevation
Hardware: batch 512 at 384; 8 GPUs of 80 GB (--config.accum_steps=8 on one).
Published: mean top-1 of the 19 test splits 72.72 % (arXiv:2010.11929 table 2; by task, table 9).
"""

from vit_jax import Config
from vit_jax.recipes import vtab

RUNS = tuple(vtab.TASKS)


def get_config(run: str = "cifar100") -> Config:
    return vtab.vit(run)
