# SPDX-License-Identifier: Apache-2.0
"""Depth of one image: NYU as DINOv3 and DPT are measured on it, and one's own folders.

facebookresearch/dinov3 eval/depth (arXiv:2508.10104 section 6.1.2), and DPT (arXiv:2103.13413) as
zhyever/Monocular-Depth-Estimation-Toolbox configs/dpt/dpt_vit-b16_nyu.py trains it.
"""

import dataclasses

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.evals import DepthEval
from vit_jax.evals.config import DepthCrop
from vit_jax.models import DType, ModelConfig
from vit_jax.models.dense import dpt
from vit_jax.models.dense.dpt import DptConfig, Readout
from vit_jax.objectives import DepthConfig, DepthHead
from vit_jax.optim import OptimConfig, Optimizer, Schedule
from vit_jax.recipes import MEAN, STD, choose, folder
from vit_jax.weights.config import InitConfig

# DINOv3's encoders by size, as `recipes.dense` has them: our name and transformers'.
LINEAR = {
    "s": ("vit_s16_dinov3", "vits16"),
    "s_plus": ("vit_s16plus_dinov3", "vits16plus"),
    "b": ("vit_b16_dinov3", "vitb16"),
    "l": ("vit_l16_dinov3", "vitl16"),
    "h_plus": ("vit_h16plus_dinov3", "vith16plus"),
    "7b": ("vit_7b16_dinov3", "vit7b16"),
}
RUNS = (*LINEAR, "dpt")
OWN = ("s14", "small")
_CROP, _WHOLE = (416, 544), (480, 640)  # of NYU's images, in training and in the test
_STEPS = 38_400


def nyu(run: str) -> Config:
    """Learn NYU's depths from "depth:nyu", its images of 480 x 640 and maps in millimetres.

    Raises UserError: no such run.
    """
    if choose("run", run, RUNS) == "dpt":
        return nyu_dpt()
    return nyu_linear(*LINEAR[run])


def nyu_linear(name: str, published: str) -> Config:
    """Measure a frozen DINOv3 by one linear layer, as its authors do.

    38,400 steps of 16, AdamW at 3e-4 with betas 0.9 and 0.99, decay 1e-4, gradients clipped at 35,
    a third of warmup; crops of 416 x 544 and flips. Differs from dinov3: images are neither turned
    by up to 2.5 degrees nor made brighter or darker, and the warmup is linear.
    """
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


def images(run: str = "s14") -> Config:
    """Learn the depths of a folder of one's own, whose size decides the batch and the duration.

    s14 fine-tunes Depth Anything V2 of metric depths indoors, whose head goes on from its weights;
    small, for a CPU, starts at random. Values are not tuned.

    Raises UserError: no such run.
    """
    whole = TransformConfig(crop=Crop.RESIZE)
    objective = DepthConfig(head=DepthHead.DPT)
    init = InitConfig()
    if choose("run", run, OWN) == "s14":
        model, head = dpt.variant("depth_anything_v2_indoor_s", image_size=(308, 308))
        objective.dpt = head
        optim = OptimConfig(lr=5e-5, weight_decay=0.01, warmup="10%", clip_norm=1.0)
        optim.lr_multipliers = ((r"^(?!depth_head/)", 0.1),)
        init.weights = "hf:depth-anything/Depth-Anything-V2-Metric-Indoor-Small-hf"
        mean, std = MEAN, STD
    else:
        model = dataclasses.replace(folder.model("small"), image_size=(64, 64))
        objective.dpt = DptConfig(
            taps=(0, 1, 2, 3),
            readout=Readout.IGNORE,
            widths=(16, 32, 48, 64),
            dim=32,
            hidden_dim=16,
            to_next=True,
        )
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
