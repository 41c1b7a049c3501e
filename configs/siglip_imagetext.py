# SPDX-License-Identifier: Apache-2.0
r"""SigLIP from scratch on images with captions in tar files, as img2dataset writes them.

    python main.py --config=configs/siglip_imagetext.py:b16 --workdir=DIR \
        --config.data.name='tar:/data/pairs/*.tar'

WebLI was never published. ImageNet's and COCO's images, on which it is measured while it trains,
are TFDS's; drop one: --config.evals.coco=none. The tokenizer is SigLIP's, from the Hub. A small
batch B wants --config.objective.bias at about -log(B), which is -10 of 32,768.
Runs: b16, l16, so400m14
Hardware: batch 32,768; 256 TPU v5e, as `--compile_for=v5e:16x16` says (docs/scale.md).
Published: zero-shot top-1 on ImageNet, B/16 at 224 76.0 %, L/16 at 256 80.5 %, So400m/14 at 224
82.0 % (open_clip, openclip_results.csv, from memory), of WebLI's pairs.
"""

from vit_jax import Config
from vit_jax.recipes import image_text

RUNS = tuple(image_text.SIGLIP)


def get_config(run: str = "b16") -> Config:
    return image_text.siglip(run)
