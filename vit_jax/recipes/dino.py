# SPDX-License-Identifier: Apache-2.0
"""Joint embeddings of views without labels: DINO, DINOv2 and v3, LeJEPA, I-JEPA, as published."""

import dataclasses
import math
from collections.abc import Callable

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, CropRule, DataConfig, Resize, TransformConfig
from vit_jax.evals import KNNEval
from vit_jax.models import DType, ViTConfig
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.objectives import (
    Balance,
    DinoConfig,
    GramConfig,
    HeadConfig,
    IJepaConfig,
    LeJepaConfig,
)
from vit_jax.optim import OptimConfig
from vit_jax.recipes import MEAN, STD, choose

# The authors decay all but biases, norms and LayerScale.
_DECAYED = "kernel$|_token$|^pos_embed$"


def _view(area: tuple[float, float], colours: str) -> TransformConfig:
    return TransformConfig(
        crop=Crop.RANDOM_RESIZED, area=area, resize=Resize.BICUBIC, flip=True, auto_augment=colours
    )


def _imagenet(
    model: ViTConfig,
    optim: OptimConfig,
    objective: DinoConfig,
    *,
    batch_size: int,
    split: float,
    small: float,
    duration: str,
    period: str,
    momentum: float,
) -> Config:
    """Compose a run; the large crops have at least the share `split`, the small ones `small`."""
    objective.second = _view((split, 1.0), "dino-blur0.1-solarize0.2")
    objective.small = _view((small, split), "dino-blur0.5")
    # Differs from paper: bfloat16 instead of float16 matmuls (v3: bfloat16 too).
    fields = {"num_classes": 0, "dynamic_image_size": True, "dtype": DType.BFLOAT16}
    plain = TransformConfig(crop=Crop.CENTER, crop_rule=CropRule.TORCH, resize=Resize.BICUBIC)
    near = KNNEval(split="validation", train_split="train[:10%]", every=period, transform=plain)
    config = Config(
        model=models.with_fields(model, fields),
        data=DataConfig(
            name="imagenet2012",
            train_split="train",
            batch_size=batch_size,
            transform=_view((split, 1.0), "dino-blur1"),
            mean=MEAN,
            std=STD,
        ),
        optim=optim,
        objective=objective,
        duration=duration,
        evals={"knn": near},
        ema_decay=momentum,
        ema_decay_end=1.0,
    )
    # The last checkpoint counts, as the authors'.
    config.checkpoint.every, config.checkpoint.keep_best = period, 0
    return config


def _dino(*, epochs: int, batch_size: int, last: float, warmup: int, unit: bool) -> Config:
    """DINO's ViT-S/16: arXiv:2104.14294 and facebookresearch/dino main_dino.py.

    AdamW at lr 5e-4 x batch / 256, cosine to 1e-6 after 10 epochs of warmup, weight decay 0.04 to
    0.4, clipping at 3, stochastic depth 0.1, the teacher's momentum 0.996 to 1, the prototypes
    frozen in the first epoch, two crops of 40 to 100 % and eight of 5 to 40 %.
    """
    # Differs from paper: one norm of all gradients is clipped; there each parameter's own.
    optim = OptimConfig(
        lr=5e-4 * batch_size / 256,
        min_lr=1e-6,
        warmup="10 epochs",
        weight_decay=0.04,
        weight_decay_end=0.4,
        decay=_DECAYED,
        clip_norm=3.0,
        hold="dino_head/prototypes",
        hold_for="1 epoch",
    )
    objective = DinoConfig(
        head=HeadConfig(unit_prototypes=unit),
        teacher_temperature=last,
        temperature_warmup=f"{warmup} epochs" if warmup else "",
    )
    return _imagenet(
        models.variant("deit_s16", drop_path_rate=0.1),
        optim,
        objective,
        batch_size=batch_size,
        split=0.4,
        small=0.05,
        duration=f"{epochs} epochs",
        period="10 epochs",
        momentum=0.996,
    )


def _large(head: HeadConfig, balance: Balance, *, shared_head: bool) -> Config:
    """Train a ViT-L/16 by the loss of DINOv2 (arXiv:2304.07193) and v3 (arXiv:2508.10104).

    125,000 steps of 2,048 images, "100 epochs" of 1,250 steps. AdamW at lr 4e-3 x sqrt(batch /
    1024), cosine to 1e-6 after 10 of the 100, weight decay 0.04 to 0.4, clipping at 3, layer decay
    0.9, patch embedding at 0.2 of the rate, stochastic depth 0.3 in every block, LayerScale 1e-5,
    the teacher's momentum 0.992 to 1, the prototypes frozen in the first of the 100, two crops of
    32 to 100 % and eight of 5 to 32 %; iBOT on half of the large crops, 10 to 50 % of their
    patches, and KoLeo of weight 0.1.
    """
    # Differs from paper: positions are learned in v3's run too, which has rotary ones; one norm of
    # all gradients is clipped, there the encoder's and each head's; the moments of the prototypes
    # wait with them.
    model = models.variant(
        "vit_l16",
        gelu=Gelu.ERF,
        init=Init.TIMM,
        layer_scale=1e-5,
        drop_path_rate=0.3,
        drop_path_rule=DropPathRule.CONSTANT,
    )
    optim = OptimConfig(
        lr=4e-3 * math.sqrt(2048 / 1024),
        min_lr=1e-6,
        warmup="12_500 steps",
        weight_decay=0.04,
        weight_decay_end=0.4,
        decay=_DECAYED,
        clip_norm=3.0,
        layer_decay=0.9,
        lr_multipliers=(("^patch_embed/", 0.2),),
        hold="_head/prototypes",
        hold_for="1250 steps",
    )
    objective = DinoConfig(
        head=head,
        shared_head=shared_head,
        balance=balance,
        temperature_warmup="37_500 steps",
        patch_weight=1.0,
        spread_weight=0.1,
    )
    if not shared_head:
        objective.patch_head = dataclasses.replace(head)
    return _imagenet(
        model,
        optim,
        objective,
        batch_size=2048,
        split=0.32,
        small=0.05,
        duration="125000 steps",
        period="12_500 steps",
        momentum=0.992,
    )


def _anchored() -> Config:
    """Train as `dinov3`, with Gram anchoring in the last fifth (arXiv:2508.10104 section 4.2).

    Its weight is 2; its teacher sees crops of twice the side and is copied every 10,000 steps,
    three times (vit7b16_gram_anchor.yaml).
    """
    # Differs from paper: there it begins after a million steps at a constant rate of learning, and
    # the loss of the small crops falls to half of its weight.
    config = RUNS["dinov3"]()
    assert isinstance(config.objective, DinoConfig), "a run of DINO"
    config.objective.gram = GramConfig(
        weight=2.0,
        start="100_000 steps",
        warmup="1000 steps",
        every="10_000 steps",
        copies=3,
        size=(448, 448),
    )
    return config


RUNS: dict[str, Callable[[], Config]] = {
    "dino": lambda: _dino(epochs=100, batch_size=512, last=0.04, warmup=0, unit=True),
    "dino_300": lambda: _dino(epochs=300, batch_size=1024, last=0.07, warmup=30, unit=False),
    # Differs from paper: v2's prototypes have unit length; there their length is learned.
    "dinov2": lambda: _large(HeadConfig(), Balance.CENTRE, shared_head=True),
    "dinov3": lambda: _large(
        HeadConfig(unit_prototypes=False), Balance.SINKHORN, shared_head=False
    ),
    "dinov3_gram": _anchored,
}


def imagenet(run: str) -> Config:
    """Return one of `RUNS`; raises UserError: no such run."""
    return RUNS[choose("run", run, RUNS)]()


LEJEPA = ("l14", "s8_imagenette")
IJEPA = ("h14", "h16_448")


def _joint(
    model: ViTConfig,
    transform: TransformConfig,
    optim: OptimConfig,
    batch_size: int,
    epochs: int,
) -> Config:
    plain = TransformConfig(crop=Crop.CENTER, crop_rule=CropRule.TORCH, resize=Resize.BICUBIC)
    near = KNNEval(split="validation", train_split="train[:10%]", every="10 epochs")
    near.transform = plain
    config = Config(
        model=models.with_fields(model, {"num_classes": 0, "dtype": DType.BFLOAT16}),
        data=DataConfig(
            name="imagenet2012",
            train_split="train",
            batch_size=batch_size,
            transform=transform,
            mean=MEAN,
            std=STD,
        ),
        optim=optim,
        duration=f"{epochs} epochs",
        evals={"knn": near},
    )
    # The last checkpoint counts, as the authors'.
    config.checkpoint.every, config.checkpoint.keep_best = "10 epochs", 0
    return config


def _crops(area: tuple[float, float], colours: str, resize: Resize) -> TransformConfig:
    return TransformConfig(
        crop=Crop.RANDOM_RESIZED, area=area, resize=resize, flip=True, auto_augment=colours
    )


def lejepa(run: str) -> Config:
    """Train by LeJEPA: arXiv:2511.08544 and rbalestr-lab/lejepa.

    l14 is the README's: two crops of 30 to 100 % and six of 5 to 30 % and 98 pixels, all in the
    same colours, 1,024 directions; AdamW at lr 5e-4, weight decay 0.05, linear warmup and cosine to
    a thousandth, 100 epochs. s8_imagenette is MINIMAL.md's: four crops of 8 to 100 % and 128
    pixels, 256 directions, 16 numbers to compare, AdamW from 2e-3 to 1e-3, batch 256, 800 epochs.

    Raises UserError: no such run.
    """
    colours = "dino-blur0.5-solarize0.2"
    model = models.variant("vit_l16", gelu=Gelu.ERF, init=Init.TIMM, drop_path_rate=0.1)
    # All is decayed; gradients are not clipped.
    shared = {"weight_decay": 0.05, "decay": ".", "clip_norm": 0.0}
    if choose("run", run, LEJEPA) == "l14":
        # Differs from paper: batch, warmup and the projector's width are not said; they are common
        # ones, and MINIMAL.md's default.
        config = _joint(
            models.with_fields(model, {"patch": (14, 14), "dynamic_image_size": True}),
            _crops((0.3, 1.0), colours, Resize.BILINEAR_ANTIALIAS),
            OptimConfig(lr=5e-4, min_lr=5e-7, warmup="10 epochs", **shared),
            512,
            100,
        )
        small = _crops((0.05, 0.3), colours, Resize.BILINEAR_ANTIALIAS)
        config.objective = LeJepaConfig(small=small, small_size=(98, 98))
        return config
    # Differs from paper: saturation changes by half as much, by 0.4; there is no layer of 512
    # between the class token and the projector, whose first layer is linear too.
    model = models.variant(
        "vit_s16",
        gelu=Gelu.ERF,
        init=Init.TIMM,
        drop_path_rate=0.1,
        patch=(8, 8),
        image_size=(128, 128),
    )
    config = _joint(
        model,
        _crops((0.08, 1.0), f"{colours}-jitter2", Resize.BILINEAR_ANTIALIAS),
        OptimConfig(lr=2e-3, min_lr=1e-3, warmup="1 epochs", **shared),
        256,
        800,
    )
    config.data.name = "folder:imagenette2-160"
    near = config.evals["knn"]
    assert isinstance(near, KNNEval), "the only evaluation"
    near.split, near.train_split = "val", "train"
    config.objective = LeJepaConfig(large_crops=4, small_crops=0, directions=256, dim=16)
    return config


def ijepa(run: str) -> Config:
    """Train a ViT-H by I-JEPA on ImageNet-1k: arXiv:2301.08243, facebookresearch/ijepa.

    300 epochs of batches of 2,048 plain crops of 30 to 100 %, without flips: AdamW from lr 2e-4 to
    1e-3 in 40 epochs of warmup and by a cosine to 1e-6, weight decay 0.04 to 0.4, the teacher's
    momentum 0.996 to 1; a predictor of 12 blocks of 384 (in1k_vith14_ep300.yaml and
    in1k_vith16-448_ep300.yaml, which differ in patch and side alone).

    Raises UserError: no such run.
    """
    # Differs from paper: the momentum rises by half a cosine; there linearly.
    side = {"h14": 224, "h16_448": 448}[choose("run", run, IJEPA)]
    patch = 14 if side == 224 else 16
    optim = OptimConfig(
        lr=1e-3,
        warmup_lr=2e-4,
        min_lr=1e-6,
        warmup="40 epochs",
        weight_decay=0.04,
        weight_decay_end=0.4,
        decay="kernel$|_token$",
        clip_norm=0.0,
    )
    model = models.variant(
        "vit_h14_ijepa",
        patch=(patch, patch),
        image_size=(side, side),
        pos_embed=PosEmbed.SINCOS2D_MAE,  # its files hold these as a table
    )
    transform = _crops((0.3, 1.0), "", Resize.BILINEAR_ANTIALIAS)
    transform.flip = False
    config = _joint(model, transform, optim, 2048, 300)
    config.objective = IJepaConfig()
    config.ema_decay, config.ema_decay_end = 0.996, 1.0
    return config
