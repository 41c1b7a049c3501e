# SPDX-License-Identifier: Apache-2.0
r"""Swin Transformer on ImageNet-1k from scratch, and its fine-tuning at 384 with windows of 12.

    python main.py --config=configs/swin_imagenet.py:t --workdir=DIR

    curl -L -o swin_base_patch4_window7_224.ms_in1k.safetensors \
    https://huggingface.co/timm/swin_base_patch4_window7_224.ms_in1k/resolve/main/model.safetensors
    python main.py --config=configs/swin_imagenet.py:b_384 --workdir=DIR

From a run of one's own: --config.init.weights=ckpt:runs/swin_b_imagenet.
Runs: t, s, b, b_384
Hardware: batch 1,024; T 8 GPUs of 32 GB or a TPU v3-8 (the authors: 8 V100), S 8 GPUs of 40 GB or a
TPU v3-16, B 16 GPUs of 32 GB or a TPU v3-16, at 384 32 GPUs of 40 GB or a TPU v3-32.
Published: top-1 at 224, T 81.2 %, S 83.2 %, B 83.5 %, at 384 84.5 % (microsoft/Swin-Transformer);
timm's swin_tiny, small and base_patch4_window7_224.ms_in1k 81.39 %, 83.23 % and 83.60 %,
swin_base_patch4_window12_384.ms_in1k 84.48 %.
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, swin

RUNS = {"t": 0.2, "s": 0.3, "b": 0.5, "b_384": 0.5}  # with the stochastic depth of each


def get_config(run: str = "t") -> Config:
    model, rate = models.variant(f"swin_{choose('run', run, RUNS)}"), RUNS[run]
    if run == "b_384":
        weights = "timm:swin_base_patch4_window7_224.ms_in1k.safetensors"
        return swin.finetune(model, weights, drop_path_rate=rate)
    return swin.imagenet(model, drop_path_rate=rate)
