# SPDX-License-Identifier: Apache-2.0
r"""DeiT with a distillation token on ImageNet-1k, taught by RegNetY-16GF; its fine-tuning at 384.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/deit_distilled_imagenet.py:s16 --workdir=DIR

The teacher's file is objective.distill.weights; reading the authors' own, with the same weights,
needs torch: https://dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth.
The paper's best runs are longer: --config.duration="1000 epochs". At 384 there is no teacher:

    curl -L -o deit_base_distilled_patch16_224.fb_in1k.safetensors \
    https://huggingface.co/timm/deit_base_distilled_patch16_224.fb_in1k/resolve/main/model.safetensors
    python main.py --config=configs/deit_distilled_imagenet.py:b16_384 --workdir=DIR

From a run of one's own: --config.init.weights=ckpt:runs/deit_b16_distilled_imagenet.
Runs: ti16, s16, b16, b16_384
Hardware: as `configs/deit_imagenet.py`.
Published: top-1 at 224, Ti 74.5 %, S 81.2 %, B 83.4 % (facebookresearch/deit README_deit; timm's
deit_tiny, small and base_distilled_patch16_224.fb_in1k 74.54 %, 81.20 % and 83.38 %). B at 384:
84.5 % (arXiv:2012.12877, taught at 224 for 300 epochs; 85.2 % after 1,000 epochs, README_deit).
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, deit

RUNS = ("ti16", "s16", "b16", "b16_384")


def get_config(run: str = "s16") -> Config:
    size, _, stage = choose("run", run, RUNS).partition("_")
    if stage:
        weights = "timm:deit_base_distilled_patch16_224.fb_in1k.safetensors"
        return deit.finetune(models.variant("deit_b16_distilled_384"), weights)
    return deit.distilled(models.variant(f"deit_{size}_distilled"))
