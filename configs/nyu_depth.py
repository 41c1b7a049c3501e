# SPDX-License-Identifier: Apache-2.0
r"""Depth of NYU: one linear layer on a frozen DINOv3, or DPT on a ViT-B/16.

    python main.py --config=configs/nyu_depth.py:b --workdir=DIR

Images and maps lie as depth:nyu, or --config.data.name=depth:PATH: PATH/images/{train,test} of
480 x 640 pixels and PATH/depth/{train,test}, 16-bit PNG in millimetres of the same names.
Runs: s, s_plus, b, l, h_plus, 7b, dpt
Hardware: the authors: 8 GPUs; b fits one of 24 GB; not run here.
Published: RMSE of DINOv3 0.403, 0.399, 0.373, 0.352, 0.352, 0.309 (arXiv:2508.10104); of DPT 0.413,
AbsRel 0.135 (zhyever/Monocular-Depth-Estimation-Toolbox configs/dpt/README.md).
"""

from vit_jax import Config
from vit_jax.recipes import depth

RUNS = depth.RUNS


def get_config(run: str = "b") -> Config:
    return depth.nyu(run)
