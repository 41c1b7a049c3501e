# SPDX-License-Identifier: Apache-2.0
"""BiT's pretraining, and the patient and consistent teaching of one BiT by another."""

from vit_jax import models
from vit_jax.config import Config
from vit_jax.data import MixConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.models import DType, ModelConfig
from vit_jax.objectives import taught
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule
from vit_jax.recipes import google

# https://storage.googleapis.com/bit_models/distill/R152x2_T_224.npz
TEACHER = "npz:R152x2_T_224.npz"


def imagenet(model: ModelConfig) -> Config:
    """BiT-S on ImageNet-1k from scratch: arXiv:1912.11370, the upstream pre-training.

    90 epochs, batch 4,096, SGD with momentum 0.9 and weight decay 1e-4, lr 0.03 x batch / 256 after
    5k steps of warmup, a tenth of it from each of the epochs 30, 60 and 80 on.
    """
    # The paper does not say how and on what it decays: the kernels, in the gradient.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
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
    return google.imagenet(model, optim, "90 epochs", "none")


def function_matching(model: ModelConfig, *, epochs: int = 1200) -> Config:
    """Teach a BiT by BiT-R152x2 on ImageNet-1k: arXiv:2106.05237, big_vision proj/distill/bit_i1k.

    1,200 epochs, batch 4,096, Inception crops that both see, mixup with lambda ~ U(0, 1), the KL
    divergence from the teacher at temperature 1 and no labels, Adam with decoupled weight decay
    0.01 (its wd / lr), lr 0.03 cosine after 5k steps of warmup, clipping at global norm 1.
    """
    # Differs from paper: bfloat16 matmuls of both; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(
        lr=0.03,
        weight_decay=0.01,
        warmup="5_000 steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    config = google.imagenet(model, optim, f"{epochs} epochs", "none")
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
