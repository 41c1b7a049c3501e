# SPDX-License-Identifier: Apache-2.0
r"""CLIP from scratch on images with captions in tar files, as img2dataset writes them.

    python main.py --config=configs/clip_imagetext.py:b16 --workdir=DIR \
        --config.data.name='tar:/data/laion400m/*.tar'

CLIP's own 400 million pairs were never published. ImageNet's and COCO's images, on which it is
measured while it trains, are TFDS's; drop one: --config.evals.coco=none. The tokenizer is in the
package. Fewer pairs, such as CC12M's: open_clip takes --config.data.batch_size=2048,
--config.optim.lr=1e-3, --config.optim.weight_decay=0.1.
Runs: b32, b16, l14
Hardware: batch 32,768; a TPU v3-256 or 256 GPUs. The authors had 256 V100s for 12 days with L/14.
Published: zero-shot top-1 on ImageNet, B/32 63.2 %, B/16 68.6 %, L/14 75.3 % (arXiv:2103.00020
table 11, from memory); open_clip on LAION-400M 62.9 %, 67.1 % and 72.8 % (its README, from memory).
"""

from vit_jax import Config
from vit_jax.recipes import image_text

RUNS = tuple(image_text.CLIP)


def get_config(run: str = "b16") -> Config:
    return image_text.clip(run)
