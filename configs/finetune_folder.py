# SPDX-License-Identifier: Apache-2.0
r"""A ViT fine-tuned, or trained from scratch, on a folder or a table of your own images.

    python main.py --config=configs/finetune_folder.py --config.data.name=PATH --workdir=DIR

PATH is a folder of class folders, with folders of splits above them or without (then they are
drawn, 80, 10 and 10 % of each class, and written to DIR/splits.csv), or a .csv file with the
columns path,label[,split]. Classes, batch and duration come from the images. Published weights:
--config.init.weights=npz:S_16.npz (timm's and the authors' with their own normalisation, such as
--config.data.mean=0.485,0.456,0.406 --config.data.std=0.229,0.224,0.225; docs/weights.md). Another
model: --config.model=vit_b16. Classes of uneven sizes: --config.data.balance=0.5.
Runs: s16; small, 0.5 million parameters and images of 64 pixels, for a CPU
Hardware: any; on one GPU of 16 GB --config.model.dtype=bfloat16 fits.
Published: none.
"""

from vit_jax.config import Config
from vit_jax.recipes import folder

RUNS = folder.RUNS


def get_config(run: str = "s16") -> Config:
    return folder.images(run)
