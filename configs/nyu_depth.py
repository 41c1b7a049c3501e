# SPDX-License-Identifier: Apache-2.0
r"""Depth of NYU: one linear layer on a frozen DINOv3, or DPT on a ViT-B/16.

    python main.py --config=configs/nyu_depth.py:b16 --workdir=DIR

Images and maps lie as depth:nyu, or --config.data.name=depth:PATH: PATH/images/{train,test} of
480 x 640 pixels and PATH/depth/{train,test}, 16-bit PNG in millimetres of the same names.
Runs: s16, s16plus, b16, l16, dpt
Hardware: the authors: 8 GPUs; b16 fits one of 24 GB.
Published: RMSE of DINOv3, S 0.403, S+ 0.399, B 0.373, L 0.352 (arXiv:2508.10104); of DPT 0.413 and
AbsRel 0.135 (zhyever/Monocular-Depth-Estimation-Toolbox configs/dpt/README.md).
"""

from vit_jax import Config
from vit_jax.recipes import depth

RUNS = depth.RUNS


def get_config(run: str = "b16") -> Config:
    return depth.nyu(run)
