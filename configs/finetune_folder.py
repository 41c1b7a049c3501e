# SPDX-License-Identifier: Apache-2.0
r"""A ViT fine-tuned, or trained from scratch, on a folder or a table of your own images.

    python main.py --config=configs/finetune_folder.py --config.data.name=PATH --workdir=DIR

PATH is a folder of class folders, with folders of splits above them or without (then they are
drawn, 80, 10 and 10 % of each class, and written to DIR/splits.csv), or a .csv file with the
columns path,label[,split]. Labels a|b in a table, lists in Parquet and several lines of a tar's
.cls are several labels of an image, and ?target=COLUMN behind PATH chooses numbers. Folders of
images and masks, of images and depth maps, COCO's JSON, Pascal VOC and YOLO are known by their
files (docs/own_data.md). What is found out is said in a line, and the loss and what the run is
judged by follow it. Classes, batch and duration come from the images. Published
weights: --config.init.weights=npz:S_16.npz (of images normalised otherwise, a warning has the flags
to set).
Another model: --config.model=vit_b16. Classes of uneven sizes: --config.data.balance=0.5.
Runs: s16, small
Hardware: small, of 0.5 million parameters and images of 64 pixels, is for a CPU; s16 fits one GPU
of 16 GB with --config.model.dtype=bfloat16.
Published: none.
"""

from collections.abc import Mapping

from vit_jax import Config
from vit_jax.recipes import folder

RUNS = folder.RUNS


def get_config(run: str = "s16") -> Config:
    return folder.images(run)


def get_config_for(given: Mapping[str, str], run: str = "s16") -> Config:
    config = folder.images(run)
    name, place = given.get("data.name", ""), given.get("data.data_dir", "")
    bands = given.get("data.bands", "")
    return folder.found_out(config, name, place, bands) if name else config
