# SPDX-License-Identifier: Apache-2.0
r"""A ViT pretrained on drawn fractals: a start for few images where published weights do not fit.

    python main.py --config=configs/pretrain_fractals.py --workdir=runs/fractals
    python main.py --config=configs/finetune_folder.py --config.data.name=PATH \
        --config.init.weights=ckpt:runs/fractals --workdir=DIR

No image is read, and none has a licence; what it gains over random weights is in
docs/benchmarks.md.
Runs: s16, small
Hardware: as of finetune_folder; small takes 10 minutes on 2 cores.
Published: arXiv:2101.08515 (FractalDB), with more classes, images and epochs; its ViTs are
arXiv:2103.13023.
"""

from vit_jax import Config
from vit_jax.recipes import folder

RUNS = folder.RUNS


def get_config(run: str = "s16") -> Config:
    return folder.fractals(run)
