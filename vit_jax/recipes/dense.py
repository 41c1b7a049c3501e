# SPDX-License-Identifier: Apache-2.0
"""Segmentation: DINOv3's linear layer on ADE20K, EoMT on ADE20K and COCO (arXiv:2503.19108)."""

from typing import NamedTuple

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, CropRule, DataConfig, Resize, TransformConfig
from vit_jax.data.config import ZoomSide
from vit_jax.data.targets import TargetKind
from vit_jax.evals import EvalConfig, InstanceEval, PanopticEval, SegmentationEval
from vit_jax.models import DType, ViTConfig
from vit_jax.objectives import EomtConfig, SegmentConfig
from vit_jax.optim import OptimConfig, Schedule
from vit_jax.recipes import MEAN, STD, choose
from vit_jax.weights.config import InitConfig

# ADEChallengeData2016 of its authors has images/ and annotations/, each with training and
# validation; 0 is no class there.
ADE20K = "masks:ADEChallengeData2016?zero=ignore"
PANOPTIC = "coco:coco/annotations/panoptic_*2017.json?images=coco"
INSTANCES = "coco:coco/annotations/instances_*2017.json?images=coco"

# DINOv3's encoders by size: our name and timm's file.
DINOV3 = {
    "s": ("vit_s16_dinov3", "vit_small_patch16_dinov3.lvd1689m"),
    "s_plus": ("vit_s16plus_dinov3", "vit_small_plus_patch16_dinov3.lvd1689m"),
    "b": ("vit_b16_dinov3", "vit_base_patch16_dinov3.lvd1689m"),
    "l": ("vit_l16_dinov3", "vit_large_patch16_dinov3.lvd1689m"),
    "h_plus": ("vit_h16plus_dinov3", "vit_huge_plus_patch16_dinov3.lvd1689m"),
    "7b": ("vit_7b16_dinov3", "vit_7b_patch16_dinov3.lvd1689m"),
}
DINOV2 = {
    "s": ("vit_s14_dinov2_reg", "vit_small_patch14_reg4_dinov2.lvd142m"),
    "b": ("vit_b14_dinov2_reg", "vit_base_patch14_reg4_dinov2.lvd142m"),
    "l": ("vit_l14_dinov2_reg", "vit_large_patch14_reg4_dinov2.lvd142m"),
    "g": ("vit_g14_dinov2_reg", "vit_giant_patch14_reg4_dinov2.lvd142m"),
}


def _plain() -> TransformConfig:
    return TransformConfig(
        crop=Crop.RESIZE, crop_rule=CropRule.TORCH, resize=Resize.BILINEAR_ANTIALIAS
    )


def linear_ade20k(size: str = "b") -> Config:
    """Train a linear layer on a frozen DINOv3: facebookresearch/dinov3, ADE20K's 150 classes.

    eval/segmentation/configs/config-ade20k-linear-training.yaml and schedulers: 40,000 steps of 16
    images, AdamW 1e-3 with betas 0.9 and 0.999 and a weight decay of 1e-3, no clipping, a warmup of
    1,500 steps, half a cosine to 0; half to twice 512 pixels, a cut of 512, flips. Measured in
    windows of 512 at a stride of 341, the short side 512.

    Raises UserError: no such size.
    """
    name, file = DINOV3[choose("size", size, DINOV3)]
    # Differs from paper: images are resized by torchvision's bilinear filter, there by OpenCV's.
    train = TransformConfig(
        crop=Crop.SCALE_JITTER,
        zoom=(0.5, 2.0),
        zoom_side=ZoomSide.SHORT,
        resize=Resize.BILINEAR_ANTIALIAS,
        flip=True,
    )
    period = "10_000 steps"
    config = Config(
        model=models.variant(name, image_size=(512, 512), num_classes=0, dtype=DType.BFLOAT16),
        data=DataConfig(
            name=ADE20K,
            train_split="train",
            batch_size=16,
            transform=train,
            mean=MEAN,
            std=STD,
            redraws=10,
        ),
        objective=SegmentConfig(),
        optim=OptimConfig(
            lr=1e-3,
            warmup="1_500 steps",
            warmup_lr=1e-9,  # a millionth of the rate
            weight_decay=1e-3,
            decay="^segment/",  # torch's AdamW decays all that it is given
            clip_norm=0.0,
        ),
        duration="40_000 steps",
        evals={"val": _classes(period, stride=341)},
        init=InitConfig(weights=f"timm:{file}.safetensors"),
    )
    config.checkpoint.every, config.checkpoint.metric = period, "val/miou"
    return config


def _classes(every: str, *, stride: int = 0) -> EvalConfig:
    return SegmentationEval(split="val", every=every, transform=_plain(), stride=stride)


class Eomt(NamedTuple):
    """One of the authors' configs (tue-mps/eomt configs/).

    Attributes:
        encoder: of DINOV2 or DINOV3.
        side: of the images in pixels.
        epochs: of the training split.
        data: the dataset.
        blocks: m, in which queries take part.
        queries: Q.
        anneal: the steps in which each of these begins and ends to leave its masks; () for equal
            parts of the run.
        full_rate: the last blocks have no layer decay (`llrd_l2_enabled` False).
        decay: of the rate from block to block (`llrd`).
    """

    encoder: str
    side: int
    epochs: int
    data: str
    blocks: int = 4
    queries: int = 200
    anneal: tuple[tuple[int, int], ...] = ()
    full_rate: bool = False
    decay: float = 0.8


_COCO_V3 = ((0, 3000), (29564, 44346), (44346, 59128), (59128, 73910))
_TWICE = ((29564, 59128), (73910, 103474), (118256, 147820))
EOMT = {
    "ade20k_l": Eomt("v2 l", 512, 31, ADE20K, queries=100),
    "ade20k_l_dinov3": Eomt(
        "v3 l",
        512,
        16,
        ADE20K,
        queries=100,
        anneal=((0, 3000), (6520, 9780), (9780, 13040), (13040, 16300)),
        decay=1.0,
    ),
    "panoptic_s": Eomt("v2 s", 640, 24, PANOPTIC, blocks=3, anneal=_TWICE),
    "panoptic_b": Eomt("v2 b", 640, 24, PANOPTIC, blocks=3, anneal=_TWICE),
    "panoptic_l": Eomt("v2 l", 640, 12, PANOPTIC),
    "panoptic_l_dinov3": Eomt("v3 l", 640, 12, PANOPTIC, anneal=_COCO_V3, full_rate=True),
    "instance_l": Eomt("v2 l", 640, 12, INSTANCES),
    "instance_l_dinov3": Eomt("v3 l", 640, 12, INSTANCES, anneal=_COCO_V3, full_rate=True),
}


def eomt(run: str) -> Config:
    """Train EoMT as its authors do: tue-mps/eomt configs/ and training/.

    AdamW 1e-4 (DINOv3: 2e-4) with a weight decay of 0.05 on everything, layer decay 0.8, gradients
    clipped at 0.01, a polynomial of 0.9; heads warm up for 500 steps (2,000), the encoder for 1,000
    (3,000) after them. 16 images; 0.5 to 2 times their size (COCO: 0.1 to 2), flips, and colours on
    ADE20K. DINOv2's patches of 14 are brought to 16.

    Raises UserError: no such run.
    """
    found = EOMT[choose("run", run, EOMT)]
    version, size = found.encoder.split()
    name, file = (DINOV2 if version == "v2" else DINOV3)[size]
    is_ade = found.data == ADE20K
    # Differs from paper: bfloat16 instead of float16 matmuls; RoPE's places are not scaled at
    # random, as transformers' DINOv3 does in training.
    model = models.variant(
        name, patch=(16, 16), image_size=(found.side,) * 2, num_classes=0, dtype=DType.BFLOAT16
    )
    # Differs from paper: colours change in one of three ways with every image, there each way with
    # one image in two, brightness by an eighth only, and hues too.
    train = TransformConfig(
        crop=Crop.SCALE_JITTER,
        zoom=(0.5, 2.0) if is_ade else (0.1, 2.0),
        zoom_side=ZoomSide.LONG,
        resize=Resize.BILINEAR_ANTIALIAS,
        flip=True,
        color_jitter=0.25 if is_ade else 0.0,
    )
    period = f"{1 if is_ade else 2} epochs"
    config = Config(
        model=model,
        data=DataConfig(
            name=found.data,
            train_split="train",
            batch_size=16,
            transform=train,
            mean=MEAN,
            std=STD,
            redraws=10,
        ),
        objective=EomtConfig(
            target=TargetKind.PIXELS if is_ade else TargetKind.SEGMENTS,
            queries=found.queries,
            blocks=found.blocks,
            anneal_start=tuple(f"{first} steps" if first else "" for first, _ in found.anneal),
            anneal_end=tuple(f"{last} steps" for _, last in found.anneal),
        ),
        optim=_optim(found, model, dinov3=version == "v3"),
        duration=f"{found.epochs} epochs",
        init=InitConfig(weights=f"timm:{file}.safetensors"),
    )
    kinds = {ADE20K: SegmentationEval, PANOPTIC: PanopticEval, INSTANCES: InstanceEval}
    config.evals = {"val": kinds[found.data](split="val", every=period, transform=_plain())}
    metrics = {ADE20K: "val/miou", PANOPTIC: "val/pq", INSTANCES: "val/mask_ap"}
    config.checkpoint.every, config.checkpoint.metric = period, metrics[found.data]
    return config


def _optim(found: Eomt, model: ViTConfig, *, dinov3: bool) -> OptimConfig:
    """Compose the optimizer; there block i of n has decay^(n - 1 - i), what is before as block 0.

    Here a block has one power more and what is before two, which factors undo.
    """
    factors: list[tuple[str, float]] = []
    if found.decay != 1:
        own = found.decay**-1
        if found.full_rate:
            first = model.depth - found.blocks
            powers = ((i, found.decay ** (i - model.depth)) for i in range(first, model.depth))
            factors += [(f"^blocks/{i}/", power) for i, power in powers]
        factors += [("^blocks/", own), ("^patch_embed/|^pos_embed$|_token$", own**2)]
    return OptimConfig(
        lr=2e-4 if dinov3 else 1e-4,
        schedule=Schedule.POLY,
        warmup="2_000 steps" if dinov3 else "500 steps",
        late="^(?!eomt_)",
        late_start="2_000 steps" if dinov3 else "500 steps",
        late_warmup="3_000 steps" if dinov3 else "1_000 steps",
        weight_decay=0.05,
        decay=".",
        layer_decay=found.decay,
        lr_multipliers=tuple(factors),
        clip_norm=0.01,
    )
