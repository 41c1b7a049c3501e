# SPDX-License-Identifier: Apache-2.0
r"""CaiT on ImageNet-1k from scratch, taught by RegNetY-16GF, and its fine-tuning at 384.

    curl -L -o regnety_160.deit_in1k.safetensors \
    https://huggingface.co/timm/regnety_160.deit_in1k/resolve/main/model.safetensors
    python main.py --config=configs/cait_imagenet.py:s24 --workdir=runs/cait_s24_imagenet
    python main.py --config=configs/cait_imagenet.py:s24_384 --workdir=runs/cait_s24_imagenet_384

Runs: xxs24, xxs24_384, s24, s24_384, s36, s36_384, m36, m36_384
Hardware: batch 1,024; XXS24 8 GPUs of 40 GB or a TPU v3-8, S24 16 GPUs of 32 GB or a TPU v3-16, S36
the same GPUs or a TPU v3-32, M36 32 GPUs of 40 GB or a TPU v3-64 (--config.model.remat=dots).
Published: top-1 at 224 and 384 with the teacher, and without (arXiv:2103.17239):
XXS24 78.4 % and 80.9 %, 77.6 % and 80.4 % (timm's cait_xxs24_224 and 384.fb_dist_in1k: 78.40 %,
80.95 %); S24 83.5 % and 85.1 % (facebookresearch/deit README_cait), 82.7 % and 84.3 %; S36 85.4 %
at 384 (README_cait; timm's cait_s36_384.fb_dist_in1k: 85.46 %), 84.8 %; M36 86.1 % at 384
(README_cait; timm's cait_m36_384.fb_dist_in1k: 86.06 %), 84.9 %.
"""

from vit_jax import Config
from vit_jax.recipes import choose, deit

RUNS = tuple(f"{size}{stage}" for size in ("xxs24", "s24", "s36", "m36") for stage in ("", "_384"))


def get_config(run: str = "s24") -> Config:
    size, _, stage = choose("run", run, RUNS).partition("_")
    return deit.cait(f"cait_{size}", finetuned=bool(stage))
