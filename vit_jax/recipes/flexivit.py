# SPDX-License-Identifier: Apache-2.0
"""FlexiViT: arXiv:2212.08013, big_vision's proj/flexivit; and a small one on scanned digits."""

import dataclasses

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import MixConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import DType, ViTConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.objectives import taught
from vit_jax.optim import MomentDtype, OptimConfig
from vit_jax.recipes import MEAN, STD
from vit_jax.recipes import digits as scans
from vit_jax.recipes.imagenet import google
from vit_jax.weights.config import InitConfig, ResizeRule

# 240 pixels in grids of 30 to 5.
PATCHES = (48, 40, 30, 24, 20, 16, 15, 12, 10, 8)
_SIZES = {384: ("small", "deit3_s16"), 768: ("base", "deit3_b16"), 1024: ("large", "deit3_l16")}
_SCANNED = (24, 16, 12, 8, 6)


def imagenet(model: ViTConfig) -> Config:
    """Teach one ViT at ten patch sizes by DeiT III on ImageNet-1k: configs/proj/flexivit.

    i1k_deit3_distill.py: 90 epochs (300, 600 and 1,200 are published), batch 1,024, Inception crops
    of 240 pixels and flips, mixup with lambda ~ U(0, 1), the KL divergence from the teacher at 384
    pixels and temperature 1 and no labels, Adam with decoupled weight decay 0.1 (its wd / lr), lr
    1e-4 cosine after 5k steps of warmup, clipping at global norm 1; started from the teacher, with
    positions of 7 x 7. Evaluated at every size.
    """
    size, teacher = _SIZES[model.dim]
    weights = f"timm:deit3_{size}_patch16_384.fb_in1k.safetensors"
    of_teacher = models.variant(teacher, image_size=(384, 384), dtype=DType.BFLOAT16)
    # Differs from paper: LayerScale stays; theirs is multiplied into the projections before it.
    model = dataclasses.replace(
        model,
        base_patch=of_teacher.patch,  # so the published config; its networks have 32 x 32
        drawn_patches=PATCHES,
        layer_scale=of_teacher.layer_scale,
        gelu=Gelu.ERF,  # the weights', where theirs has the approximation
        zero_head=False,
    )
    optim = OptimConfig(
        lr=1e-4,
        weight_decay=0.1,
        warmup="5_000 steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    config = google.imagenet(model, optim, "90 epochs", "none")
    config.data.batch_size = 1024
    config.data.mean, config.data.std = MEAN, STD
    config.data.mix = MixConfig(mixup_alpha=1.0)
    config.init = InitConfig(weights=weights, resize=ResizeRule.GOOGLE)
    # Differs from paper: the teacher sees the student's crop enlarged; theirs is cut out of the
    # original image at 384 pixels too.
    teacher = TeacherConfig(kind=Distillation.KL, alpha=1.0, teacher=of_teacher, weights=weights)
    config.objective = taught(config.objective, teacher)
    _at_every_size(config, PATCHES, "minival")
    config.checkpoint.metric = "minival16/top1"
    return config


def digits(patch: str) -> Config:
    """Train a ViT on scans at patches of 6 to 24 pixels of 48, "flexi", or of one size.

    40 epochs of `digits.digits`. A kernel and positions of one size become those of another as a
    FlexiViT's do, so that a ViT of one size can be evaluated at all.
    """
    flexible = patch == "flexi"
    side = 16 if flexible else int(patch)
    model = scans.small(
        "flexivit_s",
        image_size=(48, 48),
        patch=(side, side),
        base_patch=(side, side),
        base_grid=(48 // side, 48 // side),
        drawn_patches=_SCANNED if flexible else (),
        **scans.SHAPE,
    )
    config = scans.digits(model)
    config.duration = "40 epochs"
    _at_every_size(config, _SCANNED, "test")
    return config


def _at_every_size(config: Config, patches: tuple[int, ...], name: str) -> None:
    """Evaluate on a split at each size, as `<name><patch>`, in place of once."""
    once = config.evals.pop(name)
    assert isinstance(once, ClassifyEval)
    for side in patches:
        config.evals[f"{name}{side}"] = dataclasses.replace(once, patch=side, report=False)
