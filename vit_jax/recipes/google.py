# SPDX-License-Identifier: Apache-2.0
"""The ViT paper's, AugReg's, SAM's and MLP-Mixer's pretraining: Google's codebases."""

import math

from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Resize, TransformConfig
from vit_jax.evals import ClassifyEval, EvalConfig
from vit_jax.losses import Loss
from vit_jax.models import DType, MixerConfig, ModelConfig, ViTConfig
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import MomentDtype, OptimConfig, Schedule

# RandAugment (layers, magnitude) and mixup's alpha of AugReg's seven settings, arXiv:2106.10270
# section 3 under the names of big_vision's configs.
AUGREG = {
    "none": ("", 0.0),
    "light1": ("randaug(2,0)", 0.0),
    "light2": ("randaug(2,10)", 0.2),
    "medium1": ("randaug(2,15)", 0.2),
    "medium2": ("randaug(2,15)", 0.5),
    "strong1": ("randaug(2,20)", 0.5),
    "strong2": ("randaug(2,20)", 0.8),
}
# The other axes of its grid: nine networks, and B/8; decay times lr; dropout and stochastic depth.
AUGREG_MODELS = (
    *("vit_ti16", "vit_s32", "vit_s16", "vit_b32", "vit_b16", "vit_b8", "vit_l16"),
    *("r_vit_ti16", "r26_vit_s32", "r50_vit_l32"),
)
AUGREG_DECAYS, AUGREG_RATES = ("0.03", "0.1"), ("0.0", "0.1")


def inception(augmentation: str = "none") -> tuple[TransformConfig, float]:
    """Return Google's training transform with an AugReg augmentation, and its mixup alpha."""
    policy, mixup_alpha = AUGREG[augmentation]
    return TransformConfig(crop=Crop.INCEPTION, flip=True, auto_augment=policy), mixup_alpha


def imagenet_evals(every: str) -> dict[str, EvalConfig]:
    """Evaluate on the held-out 1 % of train while training, and on validation.

    The images are big_vision's: short side to 256 by area, centre 224.
    """
    plain = TransformConfig(crop=Crop.CENTER, crop_ratio=0.875, resize=Resize.AREA)
    return {
        "minival": ClassifyEval(split="train[99%:]", every=every, transform=plain),
        "val": ClassifyEval(split="validation", every=every, transform=plain, report=True),
    }


def imagenet(model: ModelConfig, optim: OptimConfig, duration: str, augmentation: str) -> Config:
    """Compose a from-scratch ImageNet-1k run of batch 4,096 at 224 pixels."""
    transform, mixup_alpha = inception(augmentation)
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train[:99%]",
            batch_size=4096,
            transform=transform,
            mix=MixConfig(mixup_alpha=mixup_alpha),
        ),
        optim=optim,
        duration=duration,
        evals=imagenet_evals("10 epochs"),
        checkpoint=CheckpointConfig(every="1000 steps", metric="minival/top1"),
        log=LogConfig(every="50 steps"),
    )


def vit_paper(model: ViTConfig) -> Config:
    """ViT on ImageNet-1k from scratch: arXiv:2010.11929 table 3.

    300 epochs, Adam (0.9, 0.999) with decoupled weight decay 0.3, lr 3e-3 cosine after 10k steps
    of warmup, dropout 0.1, clipping at global norm 1.
    """
    model.dropout_rate = 0.1
    # Differs from paper: a linear head; the hidden layer of its pretraining head (section 3.1) is
    # --config.model.pre_logits_dim, which AugReg found no use for.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(lr=3e-3, weight_decay=0.3, warmup="10_000 steps", clip_norm=1.0)
    return imagenet(model, optim, "300 epochs", "none")


def sam(model: ViTConfig, *, rho: float) -> Config:
    """ViT on ImageNet-1k by sharpness-aware minimisation: arXiv:2106.01548.

    300 epochs, batch 4,096, Inception crops and flips alone, Adam with decoupled weight decay 0.3,
    lr 3e-3 after 10k steps of warmup, clipping at 1. rho 0.2 of ViT-B/16: its author in
    google-research/vision_transformer issue 153.
    """
    config = vit_paper(model)
    # From memory, not checked against the paper: no dropout; all else as the ViT paper.
    model.dropout_rate = 0.0
    # Differs from paper: uphill by the gradient of the whole batch; theirs is of each of 64 TPU
    # chips' own 64 images (m-sharpness), for which rho was chosen.
    config.optim.sam_rho = rho
    return config


def augreg(
    model: ViTConfig, augmentation: str, *, weight_decay: float = 0.1, rate: float = 0.0
) -> Config:
    """AugReg on ImageNet-1k from scratch: arXiv:2106.10270 section 3, big_vision's vit_i1k.

    300 epochs, Adam with decoupled weight decay (0.1 or 0.03, times lr), lr 1e-3 cosine after 10k
    steps of warmup, clipping at 1, sigmoid loss with the head's bias at -log(1000) = -6.9; `rate`
    is of dropout and of stochastic depth, 0 or 0.1.
    """
    # Differs from big_vision's vit_i1k: that has a Dense + tanh before the head (and had, until
    # December 2022, a softmax loss).
    model.dropout_rate = model.drop_path_rate = rate
    model.head_bias = -math.log(1000)
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(
        lr=1e-3,
        schedule=Schedule.COSINE,
        weight_decay=weight_decay,
        warmup="10_000 steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    config = imagenet(model, optim, "300 epochs", augmentation)
    config.objective = SupervisedConfig(loss=Loss.SIGMOID)
    return config


def mixer(model: MixerConfig) -> Config:
    """MLP-Mixer on ImageNet-1k from scratch: big_vision's configs/mlp_mixer_i1k.py.

    300 epochs, batch 4,096, Adam with decoupled weight decay 0.1 (its wd / lr), lr 1e-3 linear to
    1e-5 of it after 10k steps of warmup, clipping at global norm 1, RandAugment (2, 15), mixup 0.5,
    stochastic depth 0.1, sigmoid loss with the head's bias at -log(1000) = -6.9.
    """
    # Differs from paper: big_vision doesn't scale up the branches that stochastic depth keeps.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.drop_path_rate = 0.1
    model.head_bias = -math.log(1000)
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(
        lr=1e-3,
        schedule=Schedule.LINEAR,
        min_lr=1e-8,
        weight_decay=0.1,
        warmup="10_000 steps",
        clip_norm=1.0,
    )
    config = imagenet(model, optim, "300 epochs", "medium2")
    config.objective = SupervisedConfig(loss=Loss.SIGMOID)
    return config
