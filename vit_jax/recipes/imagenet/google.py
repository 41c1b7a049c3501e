# SPDX-License-Identifier: Apache-2.0
"""Google's codebases: pretraining of ViT, AugReg, SAM, MLP-Mixer, BiT, and BiT's distillation."""

import math

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Resize, TransformConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import DType, MixerConfig, ModelConfig, ViTConfig
from vit_jax.models.losses import Loss
from vit_jax.objectives import SupervisedConfig, taught
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule

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
# https://storage.googleapis.com/bit_models/distill/R152x2_T_224.npz
TEACHER = "npz:R152x2_T_224.npz"


def imagenet(model: ModelConfig, optim: OptimConfig, duration: str, augmentation: str) -> Config:
    """Compose a from-scratch ImageNet-1k run of batch 4,096 at 224 pixels.

    It evaluates on the held-out 1 % of train and on validation, with big_vision's images: short
    side to 256 by area, centre 224.
    """
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    policy, mixup_alpha = AUGREG[augmentation]
    plain = TransformConfig(crop=Crop.CENTER, crop_ratio=0.875, resize=Resize.AREA)
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train[:99%]",
            batch_size=4096,
            transform=TransformConfig(crop=Crop.INCEPTION, flip=True, auto_augment=policy),
            mix=MixConfig(mixup_alpha=mixup_alpha),
        ),
        optim=optim,
        duration=duration,
        evals={
            "minival": ClassifyEval(split="train[99%:]", every="10 epochs", transform=plain),
            "val": ClassifyEval(
                split="validation", every="10 epochs", transform=plain, report=True
            ),
        },
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
    optim = OptimConfig(lr=3e-3, weight_decay=0.3, warmup="10_000 steps", clip_norm=1.0)
    return imagenet(model, optim, "300 epochs", "none")


def sam(model: ViTConfig, *, rho: float) -> Config:
    """ViT on ImageNet-1k by sharpness-aware minimisation: arXiv:2106.01548.

    300 epochs, batch 4,096, Inception crops and flips alone, Adam with decoupled weight decay 0.3,
    lr 3e-3 after 10k steps of warmup, clipping at 1. rho 0.2 of ViT-B/16: its author in
    google-research/vision_transformer issue 153.
    """
    config = vit_paper(model)
    # From memory, not checked against the paper: no dropout; all else as in the ViT paper.
    model.dropout_rate = 0.0
    # Differs from paper: the ascent follows the gradient of the whole batch; theirs that of each of
    # 64 TPU chips' own 64 images (m-sharpness), for which rho was chosen.
    config.optim.sam_rho = rho
    return config


def augreg(
    model: ViTConfig, augmentation: str, *, weight_decay: float = 0.1, rate: float = 0.0
) -> Config:
    """AugReg on ImageNet-1k from scratch: arXiv:2106.10270 section 3, big_vision's vit_i1k.

    300 epochs, Adam with decoupled weight decay (0.1 or 0.03, times lr), lr 1e-3 cosine after 10k
    steps of warmup, clipping at 1, sigmoid loss with the head's bias at -log(1000) = -6.9; `rate`,
    0 or 0.1, is that of dropout and stochastic depth.
    """
    # Differs from big_vision's vit_i1k, which has a Dense + tanh before the head (and, until
    # December 2022, a softmax loss).
    model.dropout_rate = model.drop_path_rate = rate
    model.head_bias = -math.log(1000)
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
    model.drop_path_rate = 0.1
    model.head_bias = -math.log(1000)
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


def bit(model: ModelConfig) -> Config:
    """BiT-S on ImageNet-1k from scratch: arXiv:1912.11370, the upstream pre-training.

    90 epochs, batch 4,096, SGD with momentum 0.9 and weight decay 1e-4, lr 0.03 x batch / 256 after
    5k steps of warmup, divided by 10 at epochs 30, 60 and 80.
    """
    # The paper does not specify the decay: here it acts on the kernels, in the gradient.
    optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.48,
        schedule=Schedule.STEP,
        milestones=("30 epochs", "60 epochs", "80 epochs"),
        warmup="5_000 steps",
        momentum=0.9,
        weight_decay=1e-4,
        coupled_decay=True,
        clip_norm=0.0,
    )
    return imagenet(model, optim, "90 epochs", "none")


def function_matching(model: ModelConfig, *, epochs: int = 1200) -> Config:
    """Teach a BiT by BiT-R152x2 on ImageNet-1k: arXiv:2106.05237, big_vision proj/distill/bit_i1k.

    1,200 epochs, batch 4,096, Inception crops shared by both, mixup with lambda ~ U(0, 1), the KL
    divergence from the teacher at temperature 1 and no labels, Adam with decoupled weight decay
    0.01 (its wd / lr), lr 0.03 cosine after 5k steps of warmup, clipping at global norm 1.
    """
    optim = OptimConfig(
        lr=0.03,
        weight_decay=0.01,
        warmup="5_000 steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    config = imagenet(model, optim, f"{epochs} epochs", "none")
    config.data.train_split = "train[:98%]"
    config.data.mix = MixConfig(mixup_alpha=1.0)
    teacher = TeacherConfig(
        kind=Distillation.KL,
        alpha=1.0,
        teacher=models.variant("bit_r152x2", dtype=DType.BFLOAT16),
        weights=TEACHER,
    )
    config.objective = taught(config.objective, teacher)
    return config
