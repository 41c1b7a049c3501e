# SPDX-License-Identifier: Apache-2.0
r"""ConvNeXt on ImageNet-1k from scratch, and its fine-tuning at 384.

    python main.py --config=configs/convnext_imagenet.py:t --workdir=DIR

    curl -L -o convnext_base.fb_in1k.safetensors \
    https://huggingface.co/timm/convnext_base.fb_in1k/resolve/main/model.safetensors
    python main.py --config=configs/convnext_imagenet.py:b_384 --workdir=DIR

From a run of one's own: --config.init.weights=ckpt:runs/convnext_b_imagenet.
Runs: t, s, b, l, b_384, l_384
Hardware: batch 4,096; the authors T, S and B 32 GPUs, L 64 GPUs, at 384 16 GPUs; on fewer,
--config.accum_steps=4.
Published: top-1 at 224, T 82.1 %, S 83.1 %, B 83.8 %, L 84.3 %, at 384 B 85.1 %, L 85.5 %
(facebookresearch/ConvNeXt); timm's convnext_tiny, small, base and large.fb_in1k.
"""

from vit_jax import Config, models
from vit_jax.recipes import choose, convnext

# With the stochastic depth of each.
RUNS = {"t": 0.1, "s": 0.4, "b": 0.5, "l": 0.5, "b_384": 0.8, "l_384": 0.95}
WEIGHTS = {"b_384": "convnext_base.fb_in1k", "l_384": "convnext_large.fb_in1k"}


def get_config(run: str = "t") -> Config:
    model, rate = models.variant(f"convnext_{choose('run', run, RUNS)}"), RUNS[run]
    if run in WEIGHTS:
        weights = f"timm:{WEIGHTS[run]}.safetensors"
        return convnext.finetune(model, weights, drop_path_rate=rate)
    return convnext.imagenet(model, drop_path_rate=rate)
