# SPDX-License-Identifier: Apache-2.0
r"""A ViT trained on a folder or a table of your own images, each in its own shape.

    python main.py --config=configs/naflex_folder.py --config.data.name=PATH --workdir=DIR

As configs/finetune_folder.py, whose docstring says what PATH is, but no image is squashed or cut
to a square. `small_packed` has several images to a row, and is the quickest where images are of
many sizes. Published weights: --config.model=naflexvit_b16_gap and its file.
Runs: s16, small, small_packed
Hardware: small and small_packed, of 0.5 million parameters, are for a CPU; s16 fits one GPU of 16
GB with --config.model.dtype=bfloat16.
Published: none.
"""

from vit_jax import Config
from vit_jax.recipes import naflex

RUNS = naflex.FOLDER


def get_config(run: str = "s16") -> Config:
    return naflex.images(run)
