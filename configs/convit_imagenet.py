# SPDX-License-Identifier: Apache-2.0
r"""ConViT on ImageNet-1k from scratch.

    python main.py --config=configs/convit_imagenet.py:s --workdir=DIR

Runs: ti, s, b
Hardware: batch 1,024; Ti 4 GPUs of 40 GB (the authors: 4, of 256 images each), S 8, B 16 (the
authors: 16).
Published: Ti 73.1 %, S 81.3 %, B 82.4 % top-1 at 224 (arXiv:2103.10697 table 1); Ti 73.116 %
(facebookresearch/convit); 73.14 %, 81.41 % and 82.30 % timm's convit_tiny, small and base.fb_in1k.
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, deit

RUNS = ("ti", "s", "b")


def get_config(run: str = "s") -> Config:
    return deit.convit(models.variant(f"convit_{choose('run', run, RUNS)}"))
