# SPDX-License-Identifier: Apache-2.0
r"""AugReg's grid on ImageNet-1k from scratch: MODEL,AUGMENTATION,DECAY,RATE.

    python main.py --config=configs/augreg_imagenet.py:vit_s16,medium1,0.1,0.0 --workdir=DIR

MODEL: vit_{ti16,s32,s16,b32,b16,b8,l16}, r_vit_ti16, r26_vit_s32, r50_vit_l32. AUGMENTATION: none,
light1, light2, medium1, medium2, strong1, strong2. DECAY: 0.03 or 0.1. RATE, of dropout and of
stochastic depth: 0.0 or 0.1.
Hardware: batch 4,096; for S/16 a TPU v3-32 slice or 8 GPUs of 80 GB.
Published: 51,509 fine-tuned models (arXiv:2106.10270; gs://vit_models/augreg/index.csv). The best
S/16 and B/16 of ImageNet-1k alone: 78.84 % top-1 at 224 and 81.10 % at 384 (timm's
vit_small_patch16_224.augreg_in1k, vit_base_patch16_384.augreg_in1k).
"""

from vit_jax import Config, UserError, models
from vit_jax.recipes import google

AXES = {
    "MODEL": google.AUGREG_MODELS,
    "AUGMENTATION": tuple(google.AUGREG),
    "DECAY": google.AUGREG_DECAYS,
    "RATE": google.AUGREG_RATES,
}


def get_config(run: str = "vit_s16,medium1,0.1,0.0") -> Config:
    argument = f"augreg_imagenet.py:{run}"
    parts = [part.strip() for part in run.split(",")]
    lists = [f"{axis}: {', '.join(valid)}" for axis, valid in AXES.items()]
    if len(parts) != len(AXES):
        missing = "; ".join(["", *lists[len(parts) :]])
        raise UserError(
            f"{argument} must be augreg_imagenet.py:{','.join(AXES)}, such as "
            f"augreg_imagenet.py:vit_s16,medium1,0.1,0.0{missing}"
        )
    for part, valid, listed in zip(parts, AXES.values(), lists, strict=True):
        if part not in valid:
            raise UserError(f"{argument}: there is no {part!r}; {listed}")
    name, augmentation, decay, rate = parts
    model = models.variant(name)
    return google.augreg(model, augmentation, weight_decay=float(decay), rate=float(rate))
