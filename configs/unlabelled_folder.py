# SPDX-License-Identifier: Apache-2.0
r"""A ViT that learns from a folder of your own images without labels: MAE, DINO, LeJEPA, I-JEPA.

    python main.py --config=configs/unlabelled_folder.py:mae --config.data.name=PATH --workdir=DIR
    python main.py --config=configs/unlabelled_folder.py --config.data.name=PATH \
        --config.init.weights=hub:facebook/dinov2-small --workdir=DIR
    python main.py --config=configs/finetune_folder.py --config.data.name=LABELLED \
        --config.init.weights=ckpt:DIR --workdir=runs/mine

PATH is a folder of images, flat or in folders of any kind, or what else data.name takes; labels are
not read. Where its folders are classes, neighbours on val say how the features come along. Batch
and duration come from the images. The second command names no run: it goes on from published
weights, or of a run ckpt:DIR, by what suits them, and says what it chose. The third fine-tunes on
those that have labels: finetune_folder.py:small after a run of a small model.
Runs: mae, dino, lejepa, ijepa, mae_small, dino_small, lejepa_small, ijepa_small
Hardware: the small ones, of 0.5 million parameters and images of 64 pixels, are for a CPU; the
others fit one GPU of 16 GB with --config.model.dtype=bfloat16.
Published: none.
"""

from collections.abc import Mapping

from vit_jax import Config
from vit_jax.recipes import continued, unlabelled

RUNS = tuple(unlabelled.OWN)


def get_config(run: str = "mae") -> Config:
    return unlabelled.images(run)


def get_config_for(given: Mapping[str, str]) -> Config:
    return continued.images(given)
