# SPDX-License-Identifier: Apache-2.0
r"""LiT: a text tower from scratch for an image tower that is trained already and stays as it is.

    curl -O https://storage.googleapis.com/vit_models/augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0.npz
    python main.py --config=configs/lit_imagetext.py:b16 --workdir=DIR \
        --config.data.name='tar:/data/cc12m/*.tar'

Any image tower of the package can be the locked one: --config.model=resnet50 and
--config.init.weights, with --config.objective.image_projection=linear where its features are not
768 wide. ImageNet's and COCO's images, on which it is measured, are TFDS's; drop one:
--config.evals.coco=none.
Runs: b16
Hardware: batch 16,384; 64 TPU v3 cores, or 32 GPUs of 40 GB.
Published: of this text tower none. 20.7 % zero-shot top-1 on ImageNet after COCO's captions alone,
with a BERT (big_vision README_lit, coco_B16B).
"""

from vit_jax import Config
from vit_jax.recipes import image_text

RUNS = tuple(image_text.LIT)


def get_config(run: str = "b16") -> Config:
    return image_text.lit(run)
