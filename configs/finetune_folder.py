# SPDX-License-Identifier: Apache-2.0
r"""A ViT fine-tuned, or trained from scratch, on a folder or a table of your own images.

    python main.py --config=configs/finetune_folder.py --config.data.name=PATH --workdir=DIR

PATH is a folder of class folders, with folders of splits above them or without (then they are
drawn, 80, 10 and 10 % of each class, and written to DIR/splits.csv), or a .csv file with the
columns path,label[,split]. Classes, batch and duration come from the images. Published weights:
--config.init.weights=npz:S_16.npz (of images normalised otherwise, a warning has the flags to set).
Another model: --config.model=vit_b16. Classes of uneven sizes: --config.data.balance=0.5.
Runs: s16, small
Hardware: small, of 0.5 million parameters and images of 64 pixels, is for a CPU; s16 fits one GPU
of 16 GB with --config.model.dtype=bfloat16.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import folder

RUNS = folder.RUNS


def get_config(run: str = "s16") -> Config:
    return folder.images(run)
