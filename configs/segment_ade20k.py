# SPDX-License-Identifier: Apache-2.0
r"""The classes of ADE20K's pixels by a linear layer on a frozen DINOv3.

    python main.py --config=configs/segment_ade20k.py:b --workdir=runs/ade20k_linear \
        --config.init.weights=timm:vit_base_patch16_dinov3.lvd1689m.safetensors

The file: https://huggingface.co/timm/vit_base_patch16_dinov3.lvd1689m
The data: https://ade20k.csail.mit.edu, ADEChallengeData2016.zip, with names of the classes in its
classes.txt.
Runs: s, s_plus, b, l, h_plus, 7b
Hardware: one H100, hours; not run here.
Published: mIoU 47.0, 48.8, 51.8, 54.9, 54.8, 55.9 (arXiv:2508.10104, from the model cards).
"""

from vit_jax import Config
from vit_jax.recipes import dense

RUNS = tuple(dense.DINOV3)


def get_config(size: str = "b") -> Config:
    return dense.linear_ade20k(size)
