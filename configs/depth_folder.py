# SPDX-License-Identifier: Apache-2.0
r"""Depth of a folder of your own: Depth Anything V2 fine-tuned, or a small ViT from scratch.

    python main.py --config=configs/depth_folder.py --config.data.name=depth:PATH --workdir=DIR

PATH/images/{train,val} has pictures, PATH/depth/{train,val} a map of each under its name: 16-bit
PNG or TIFF in millimetres (another unit: depth:PATH?scale=0.01), or .npy; 0 is not known.
Depths are of 80 at most in what is measured: --config.evals.val.max_depth.
Runs: s14, small
Hardware: small, for images of 64 pixels, is for a CPU; s14 fits one GPU of 16 GB.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import dense

RUNS = dense.OWN_DEPTH


def get_config(run: str = "s14") -> Config:
    return dense.own_depth(run)
