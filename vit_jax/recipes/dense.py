# SPDX-License-Identifier: Apache-2.0
"""Every pixel: DINOv3's linear layer on ADE20K, EoMT on ADE20K and COCO, depth on NYU.

EoMT is arXiv:2503.19108. Depth is measured as facebookresearch/dinov3 eval/depth does
(arXiv:2508.10104 section 6.1.2), and DPT (arXiv:2103.13413) trained as
zhyever/Monocular-Depth-Estimation-Toolbox configs/dpt/dpt_vit-b16_nyu.py does.
"""

import dataclasses
from typing import NamedTuple

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, CropRule, DataConfig, Resize, TransformConfig
from vit_jax.data.config import ZoomSide
from vit_jax.data.targets import TargetKind
from vit_jax.evals import DepthEval, EvalConfig, InstanceEval, PanopticEval, SegmentationEval
from vit_jax.evals.config import DepthCrop
from vit_jax.models import DType, ModelConfig, ViTConfig
from vit_jax.models.dense import dpt
from vit_jax.models.dense.dpt import DptConfig, Readout
from vit_jax.objectives import DepthConfig, DepthHead, EomtConfig, SegmentConfig
from vit_jax.optim import OptimConfig, Optimizer, Schedule
from vit_jax.recipes import MEAN, STD, choose, folder
from vit_jax.weights.config import InitConfig

# ADEChallengeData2016 of its authors has images/ and annotations/, each with training and
# validation; 0 is no class there.
ADE20K = "masks:ADEChallengeData2016?zero=ignore"
PANOPTIC = "coco:coco/annotations/panoptic_*2017.json?images=coco"
INSTANCES = "coco:coco/annotations/instances_*2017.json?images=coco"

# DINOv3's encoders by size: our name, timm's file, and what transformers' calls it.
DINOV3 = {
    "s": ("vit_s16_dinov3", "vit_small_patch16_dinov3.lvd1689m", "vits16"),
    "s_plus": ("vit_s16plus_dinov3", "vit_small_plus_patch16_dinov3.lvd1689m", "vits16plus"),
    "b": ("vit_b16_dinov3", "vit_base_patch16_dinov3.lvd1689m", "vitb16"),
    "l": ("vit_l16_dinov3", "vit_large_patch16_dinov3.lvd1689m", "vitl16"),
    "h_plus": ("vit_h16plus_dinov3", "vit_huge_plus_patch16_dinov3.lvd1689m", "vith16plus"),
    "7b": ("vit_7b16_dinov3", "vit_7b_patch16_dinov3.lvd1689m", "vit7b16"),
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
    name, file, _ = DINOV3[choose("size", size, DINOV3)]
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


class EomtRun(NamedTuple):
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
    "ade20k_l": EomtRun("v2 l", 512, 31, ADE20K, queries=100),
    "ade20k_l_dinov3": EomtRun(
        "v3 l",
        512,
        16,
        ADE20K,
        queries=100,
        anneal=((0, 3000), (6520, 9780), (9780, 13040), (13040, 16300)),
        decay=1.0,
    ),
    "panoptic_s": EomtRun("v2 s", 640, 24, PANOPTIC, blocks=3, anneal=_TWICE),
    "panoptic_b": EomtRun("v2 b", 640, 24, PANOPTIC, blocks=3, anneal=_TWICE),
    "panoptic_l": EomtRun("v2 l", 640, 12, PANOPTIC),
    "panoptic_l_dinov3": EomtRun("v3 l", 640, 12, PANOPTIC, anneal=_COCO_V3, full_rate=True),
    "instance_l": EomtRun("v2 l", 640, 12, INSTANCES),
    "instance_l_dinov3": EomtRun("v3 l", 640, 12, INSTANCES, anneal=_COCO_V3, full_rate=True),
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
    name, file, *_ = (DINOV2 if version == "v2" else DINOV3)[size]
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


def _optim(found: EomtRun, model: ViTConfig, *, dinov3: bool) -> OptimConfig:
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


NYU = (*DINOV3, "dpt")
OWN_DEPTH = ("s14", "small")
_CROP, _WHOLE = (416, 544), (480, 640)  # of NYU's images, in training and in the test
_STEPS = 38_400


def nyu(run: str) -> Config:
    """Learn NYU's depths from "depth:nyu", its images of 480 x 640 and maps in millimetres.

    Raises UserError: no such run.
    """
    if choose("run", run, NYU) == "dpt":
        return nyu_dpt()
    return nyu_linear(run)


def nyu_linear(size: str) -> Config:
    """Measure a frozen DINOv3 by one linear layer, as its authors do.

    38,400 steps of 16, AdamW at 3e-4 with betas 0.9 and 0.99, decay 1e-4, gradients clipped at 35,
    a third of warmup; crops of 416 x 544 and flips. Differs from dinov3: images are neither turned
    by up to 2.5 degrees nor made brighter or darker, and the warmup is linear.
    """
    name, _, published = DINOV3[size]
    model = models.variant(name, num_classes=0, image_size=_CROP, dtype=DType.BFLOAT16)
    optim = OptimConfig(
        lr=3e-4,
        schedule=Schedule.COSINE,
        warmup="12_800 steps",
        beta1=0.9,
        beta2=0.99,
        weight_decay=1e-4,
        decay="^depth_head/",  # torch's AdamW decays all that it is given
        clip_norm=35.0,
    )
    config = _nyu(model, optim, DepthConfig(frozen=True))
    config.init = InitConfig(weights=f"hf:facebook/dinov3-{published}-pretrain-lvd1689m")
    return config


def nyu_dpt() -> Config:
    """Fine-tune a ViT-B/16 of ImageNet-21k with a DPT head.

    24 epochs of 1,600 steps of 16, AdamW at 1e-4, a tenth of it for the encoder, decay 0.01 of all
    but norms, positions and the class token, clipped at 35; a cycle that begins at 1/25 of the rate
    and has its top at 30 %. Differs from the toolbox: a linear warmup, betas that stay, neither
    rotations nor changes of colours.
    """
    model = models.variant("vit_b16", num_classes=0, image_size=_CROP, dtype=DType.BFLOAT16)
    model.dynamic_image_size = True
    lr = 1e-4
    optim = OptimConfig(
        lr=lr,
        schedule=Schedule.COSINE,
        warmup="30%",
        warmup_lr=lr / 25,
        min_lr=lr / 2500,
        weight_decay=0.01,
        decay="^(?!pos_embed|cls_token|.*norm)",
        clip_norm=35.0,
        lr_multipliers=((r"^(?!depth_head/)", 0.1),),
    )
    objective = DepthConfig(head=DepthHead.DPT, dpt=DptConfig())
    config = _nyu(model, optim, objective)
    config.data.mean, config.data.std = (0.5,), (0.5,)
    config.init = InitConfig(weights="npz:ViT-B_16.npz", skip=("^head/", "^pre_logits/"))
    return config


def _nyu(model: ModelConfig, optim: OptimConfig, objective: DepthConfig) -> Config:
    # The short side stays at 480 pixels, of which 416 are cut anywhere.
    cut = TransformConfig(crop=Crop.RANDOM, crop_ratio=_CROP[0] / _WHOLE[0], flip=True)
    test = DepthEval(
        split="test",
        transform=TransformConfig(crop=Crop.RESIZE),
        crop=DepthCrop.EIGEN,
        flip=True,
        image_size=_WHOLE,
    )
    return Config(
        model=model,
        data=DataConfig(name="depth:nyu", batch_size=16, transform=cut, mean=MEAN, std=STD),
        optim=optim,
        objective=objective,
        duration=f"{_STEPS} steps",
        evals={"test": test},
        checkpoint=CheckpointConfig(every="1_600 steps", metric="test/rmse", keep_best=0),
        log=LogConfig(every="50 steps"),
    )


def small_dpt() -> DptConfig:
    """Return a DPT head over four blocks of a small ViT, without a class token."""
    return DptConfig(
        taps=(0, 1, 2, 3),
        readout=Readout.IGNORE,
        widths=(16, 32, 48, 64),
        dim=32,
        hidden_dim=16,
        to_next=True,
    )


def own_depth(run: str = "s14") -> Config:
    """Learn the depths of a folder of one's own, whose size decides the batch and the duration.

    s14 fine-tunes Depth Anything V2 of metric depths indoors, whose head goes on from its weights;
    small, for a CPU, starts at random. Values are not tuned.

    Raises UserError: no such run.
    """
    whole = TransformConfig(crop=Crop.RESIZE)
    objective = DepthConfig(head=DepthHead.DPT)
    init = InitConfig()
    if choose("run", run, OWN_DEPTH) == "s14":
        model, head = dpt.variant("depth_anything_v2_indoor_s", image_size=(308, 308))
        objective.dpt = head
        optim = OptimConfig(lr=5e-5, weight_decay=0.01, warmup="10%", clip_norm=1.0)
        optim.lr_multipliers = ((r"^(?!depth_head/)", 0.1),)
        init.weights = "hf:depth-anything/Depth-Anything-V2-Metric-Indoor-Small-hf"
        mean, std = MEAN, STD
    else:
        model = dataclasses.replace(folder.model("small"), image_size=(64, 64))
        objective.dpt = small_dpt()
        optim = OptimConfig(
            name=Optimizer.ADAMW, lr=1e-3, weight_decay=0.05, warmup="10%", clip_norm=1.0
        )
        mean, std = (0.5,), (0.5,)
    return Config(
        model=model,
        data=DataConfig(
            name="",
            batch_size=0,
            transform=dataclasses.replace(whole, flip=True),
            mean=mean,
            std=std,
            cache=True,
        ),
        optim=optim,
        objective=objective,
        init=init,
        duration="auto",
        evals={"val": DepthEval(split="val", every="5%", transform=whole, max_depth=80.0)},
        checkpoint=CheckpointConfig(every="5%", metric="val/rmse"),
        log=LogConfig(every="1%"),
    )
