# SPDX-License-Identifier: Apache-2.0
"""Published recipes as fragments of configs; each names its paper's table or its code."""

import math

from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Resize, TransformConfig
from vit_jax.evals import EvalConfig
from vit_jax.losses import Loss
from vit_jax.models import DType, MixerConfig, ModelConfig, RegNetConfig, ResNetConfig, ViTConfig
from vit_jax.objectives import ObjectiveConfig
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
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
        "minival": EvalConfig(split="train[99%:]", every=every, transform=plain),
        "val": EvalConfig(split="validation", every=every, transform=plain, report=True),
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
        checkpoint=CheckpointConfig(every="1000 steps"),
        log=LogConfig(every="50 steps"),
    )


def vit_paper_imagenet(model: ViTConfig) -> Config:
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


def augreg_imagenet(model: ViTConfig, augmentation: str, regularised: bool) -> Config:
    """AugReg on ImageNet-1k from scratch: arXiv:2106.10270 section 3, big_vision's vit_i1k.

    300 epochs, Adam with decoupled weight decay 0.1, lr 1e-3 cosine after 10k steps of warmup,
    sigmoid loss with the head's bias at -log(1000) = -6.9; `regularised`: dropout 0.1 and
    stochastic depth 0.1.
    """
    if regularised:
        model.dropout_rate = model.drop_path_rate = 0.1
    model.head_bias = -math.log(1000)
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(
        lr=1e-3,
        schedule=Schedule.COSINE,
        weight_decay=0.1,
        warmup="10_000 steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    config = imagenet(model, optim, "300 epochs", augmentation)
    config.objective = ObjectiveConfig(loss=Loss.SIGMOID)
    return config


def deit_imagenet(
    model: ModelConfig, *, epochs: int = 300, drop_path_rate: float = 0.1, crop_ratio: float = 0.875
) -> Config:
    """DeiT on ImageNet-1k: arXiv:2012.12877 table 9 and facebookresearch/deit main.py.

    300 epochs, batch 1,024, AdamW lr 5e-4 x batch / 512, weight decay 0.05 on matrices only, cosine
    to 1e-5 after 5 epochs of warmup from 1e-6, no clipping, stochastic depth, label smoothing 0.1,
    an average of the weights of decay 0.99996.
    """
    # Differs from paper: of its augmentation, mixup 0.8 without cutmix, Google's RandAugment
    # instead of timm's, no random erasing, no repeated augmentation.
    # Differs from paper: its schedule goes by epochs and lags one behind; ours goes by steps.
    # Differs from paper: bfloat16 instead of float16 matmuls; --config.model.dtype=float32.
    model.dtype = DType.BFLOAT16
    model.drop_path_rate = drop_path_rate  # pyright: ignore[reportAttributeAccessIssue]
    plain = TransformConfig(crop=Crop.CENTER, crop_ratio=crop_ratio, resize=Resize.BICUBIC)
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train",
            batch_size=1024,
            transform=TransformConfig(
                crop=Crop.RANDOM_RESIZED,
                resize=Resize.BICUBIC,
                flip=True,
                auto_augment="randaug(2,9)",
            ),
            mix=MixConfig(mixup_alpha=0.8),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        ),
        optim=OptimConfig(
            lr=1e-3,
            weight_decay=0.05,
            warmup="5 epochs",
            warmup_lr=1e-6,
            min_lr=1e-5,
            clip_norm=0.0,
        ),
        objective=ObjectiveConfig(label_smoothing=0.1),
        duration=f"{epochs} epochs",
        evals={"val": EvalConfig(split="validation", every="10 epochs", transform=plain)},
        checkpoint=CheckpointConfig(every="1 epoch"),
        log=LogConfig(every="50 steps"),
        ema_decay=0.99996,
    )


def swin_imagenet(model: ModelConfig, *, drop_path_rate: float) -> Config:
    """Swin on ImageNet-1k from scratch: microsoft/Swin-Transformer config.py, configs/swin.

    300 epochs, batch 1,024, AdamW lr 5e-4 x batch / 512, weight decay 0.05 on matrices only, cosine
    to 1e-5 after 20 epochs of warmup from 1e-6 (both scaled like lr), clipping at global norm 5,
    stochastic depth, label smoothing 0.1. Its data is DeiT's without repeated augmentation.
    """
    # Differs from paper: see deit_imagenet, but for the schedule, which goes by steps here too; it
    # lags one step behind ours.
    config = deit_imagenet(model, drop_path_rate=drop_path_rate)
    config.optim = OptimConfig(
        lr=1e-3,
        weight_decay=0.05,
        warmup="20 epochs",
        warmup_lr=1e-6,
        min_lr=1e-5,
        clip_norm=5.0,
    )
    config.ema_decay = 0.0
    return config


def mixer_imagenet(model: MixerConfig) -> Config:
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
    config.objective = ObjectiveConfig(loss=Loss.SIGMOID)
    return config


def bit_imagenet(model: ModelConfig) -> Config:
    """BiT-S on ImageNet-1k from scratch: arXiv:1912.11370, the upstream pre-training.

    90 epochs, batch 4,096, SGD with momentum 0.9 and weight decay 1e-4, lr 0.03 x batch / 256 after
    5k steps of warmup, a tenth of it from each of the epochs 30, 60 and 80 on.
    """
    # Differs from paper: decay apart from the momentum, where a decay of 1e-4 adds up to 1e-3.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.48,
        schedule=Schedule.STEP,
        milestones=("30 epochs", "60 epochs", "80 epochs"),
        warmup="5_000 steps",
        momentum=0.9,
        weight_decay=1e-3,
        clip_norm=0.0,
    )
    return imagenet(model, optim, "90 epochs", "none")


def regnet_imagenet(model: RegNetConfig | ResNetConfig, *, batch_size: int) -> Config:
    """RegNet and its baselines on ImageNet-1k: arXiv:2003.13678 section 5, pycls' MODEL_ZOO.

    100 epochs, SGD with Nesterov momentum 0.9, lr 0.1 x batch / 128 (batch 1,024 up to 1.6 GF, 512
    up to 16 GF, 256 for 32 GF and the ResNets), cosine after 5 epochs of warmup from a tenth of it,
    weight decay 5e-5 on all parameters, flips and random crops.
    """
    # Differs from paper: decay apart from the momentum, where a decay of 5e-5 adds up to 5e-4.
    # Differs from paper: BatchNorm's statistics are of the whole batch, not of a GPU's share of it.
    # Differs from paper: no jitter of the colours along their principal components (AlexNet's).
    # Differs from paper: its rate is the cosine of the whole run times the warmup, epoch by epoch.
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    model.zero_init_last = False
    lr = 0.1 * batch_size / 128
    plain = TransformConfig(crop=Crop.CENTER, crop_ratio=0.875, resize=Resize.BILINEAR)
    return Config(
        model=model,
        data=DataConfig(
            name="imagenet2012",
            train_split="train",
            batch_size=batch_size,
            transform=TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True),
            mean=IMAGENET_MEAN,
            std=IMAGENET_STD,
        ),
        optim=OptimConfig(
            name=Optimizer.SGD,
            lr=lr,
            warmup="5 epochs",
            warmup_lr=0.1 * lr,
            nesterov=True,
            weight_decay=5e-4,
            decay=".",
            clip_norm=0.0,
        ),
        duration="100 epochs",
        evals={"val": EvalConfig(split="validation", every="5 epochs", transform=plain)},
        checkpoint=CheckpointConfig(every="1 epoch"),
        log=LogConfig(every="50 steps"),
    )
