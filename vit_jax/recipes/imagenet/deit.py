# SPDX-License-Identifier: Apache-2.0
"""DeiT's training, distillation and fine-tuning (facebookresearch/deit), CaiT's and ConViT's."""

import dataclasses

from vit_jax import models, objectives
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Partner, Resize, TransformConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.models import DType, ModelConfig, pair
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import OptimConfig, Optimizer
from vit_jax.recipes import MEAN, STD, val
from vit_jax.weights.config import InitConfig, ResizeRule

# huggingface.co/timm/regnety_160.deit_in1k's model.safetensors, renamed; reading the authors' file,
# dl.fbaipublicfiles.com/deit/regnety_160-a5fe301d.pth, needs torch.
TEACHER = "timm:regnety_160.deit_in1k.safetensors"
# DeiT decays the distillation token: no list of its exceptions names it.
_DECAY_DISTILLED = "kernel$|dist_token"
# CaiT: stochastic depth, in every block alike; arXiv:2103.17239.
_CAIT = {"cait_xxs24": 0.05, "cait_s24": 0.1, "cait_s36": 0.2, "cait_m36": 0.3}


def by_epochs(optim: OptimConfig) -> OptimConfig:
    """Return an optimizer on timm's schedule as DeiT steps it.

    The rate is that of the epoch before; the cosine starts with warmup, 5 epochs from 1e-6.
    """
    return dataclasses.replace(
        optim,
        warmup="5 epochs",
        warmup_lr=1e-6,
        schedule_every="1 epoch",
        schedule_lag=True,
        warmup_overlap=True,
    )


def imagenet(
    model: ModelConfig, *, epochs: int = 300, drop_path_rate: float = 0.1, crop_ratio: float = 0.875
) -> Config:
    """DeiT on ImageNet-1k: arXiv:2012.12877 table 9 and facebookresearch/deit main.py.

    300 epochs, batch 1,024, AdamW lr 5e-4 x batch / 512, weight decay 0.05 on matrices only, cosine
    to 1e-5 by epochs after 5 epochs of warmup from 1e-6, no clipping, stochastic depth, label
    smoothing 0.1, mixup 0.8 or cutmix 1.0, RandAugment, random erasing 0.25, 3 copies of each image
    in an epoch of a third of the images, an average of the weights of decay 0.99996.
    """
    # Differs from paper: bfloat16 instead of float16 matmuls; --config.model.dtype=float32.
    model = dataclasses.replace(model, dtype=DType.BFLOAT16, drop_path_rate=drop_path_rate)
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
                auto_augment="rand-m9-mstd0.5-inc1",
            ),
            mix=MixConfig(mixup_alpha=0.8, cutmix_alpha=1.0, partner=Partner.REVERSED),
            erasing_prob=0.25,
            repeats=3,
            mean=MEAN,
            std=STD,
        ),
        optim=by_epochs(OptimConfig(lr=1e-3, weight_decay=0.05, min_lr=1e-5, clip_norm=0.0)),
        objective=SupervisedConfig(label_smoothing=0.1),
        duration=f"{epochs} epochs",
        evals=val("10 epochs", crop_ratio=crop_ratio, resize=Resize.BICUBIC),
        # The last checkpoint counts, as the authors': nothing is held out to choose another by.
        checkpoint=CheckpointConfig(every="1 epoch", keep_best=0),
        log=LogConfig(every="50 steps"),
        ema_decay=0.99996,
    )


def taught(config: Config) -> Config:
    """Add DeiT's teacher: hard distillation by RegNetY-16GF at the student's size.

    Half of the loss is the cross-entropy with the teacher's first guess on the mixed images, not
    smoothed (arXiv:2012.12877 section 4). The teacher's top-1 is 82.9 %.
    """
    size = config.model.image_size
    teacher = TeacherConfig(
        kind=Distillation.HARD,
        alpha=0.5,
        teacher=models.variant("regnety_16gf", image_size=size, dtype=DType.BFLOAT16),
        weights=TEACHER,
    )
    config.objective = objectives.taught(config.objective, teacher)
    return config


def distilled(model: ModelConfig) -> Config:
    """DeiT with a distillation token: as `imagenet`, taught."""
    config = taught(imagenet(model))
    config.optim.decay = _DECAY_DISTILLED
    return config


def finetune(model: ModelConfig, weights: str) -> Config:
    """Fine-tune at a higher resolution: facebookresearch/deit README_deit, at 384.

    30 epochs, batch 512, a constant lr of 5e-6 after 5 epochs of warmup from 1e-6, weight decay
    1e-8, augmentation as in training. The model runs as in evaluation: no stochastic depth; with a
    distillation token, the mean of both heads and no teacher. Positions are resized by DeiT's
    bicubic rule.
    """
    config = imagenet(model, epochs=30, drop_path_rate=0.0)
    config.data.batch_size = 512
    config.optim = by_epochs(OptimConfig(lr=5e-6, weight_decay=1e-8, min_lr=5e-6, clip_norm=0.0))
    if getattr(model, "distilled", False):
        config.optim.decay = _DECAY_DISTILLED
    config.objective = SupervisedConfig(label_smoothing=0.1, train_mode=False)
    config.init = InitConfig(weights=weights, resize=ResizeRule.OFFICIAL)
    side = pair(model.image_size, "image_size")[0]
    # DeiT rounds the short side down: 438 for 384.
    ratio = side / int(side * 256 / 224)
    config.evals = val("1 epoch", crop_ratio=ratio, resize=Resize.BICUBIC)
    return config


def transfer(model: ModelConfig, weights: str, dataset: str) -> Config:
    """Transfer to CIFAR-10 or Stanford Cars: facebookresearch/deit issue 45.

    1,000 epochs, batch 768, SGD lr 0.01, weight decay 1e-4, at 224 pixels, no random erasing, no
    stochastic depth, all else as in training.
    """
    config = imagenet(model, epochs=1000, drop_path_rate=0.0)
    config.data.name, config.data.batch_size, config.data.erasing_prob = dataset, 768, 0.0
    optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.01,
        min_lr=1e-5,
        nesterov=True,  # timm's "sgd"
        weight_decay=1e-4,
        coupled_decay=True,
        clip_norm=0.0,
    )
    config.optim = by_epochs(optim)
    config.init = InitConfig(weights=weights, skip=("^head/",), resize=ResizeRule.OFFICIAL)
    config.checkpoint.every = "10 epochs"
    config.evals = {"test": config.evals["val"]}
    config.evals["test"].split = "test"
    return config


def convit(model: ModelConfig) -> Config:
    """ConViT on ImageNet-1k: facebookresearch/convit main.py; DeiT's, without averaged weights."""
    config = imagenet(model)
    config.ema_decay = 0.0
    return config


def cait(name: str, *, finetuned: bool) -> Config:
    """CaiT on ImageNet-1k: arXiv:2103.17239; DeiT's in 400 epochs, taught without a token.

    Its one head learns half from the labels and half from the teacher; evaluated on the central
    square (crop ratio 1). `finetuned`: at 384, from the run runs/<name>_imagenet.
    """
    if not finetuned:
        model = models.variant(name, image_size=(224, 224))
        rate = _CAIT[name]
        return taught(imagenet(model, epochs=400, drop_path_rate=rate, crop_ratio=1.0))
    # The paper does not describe its fine-tuning; this is DeiT's, with the teacher.
    config = finetune(models.variant(name, image_size=(384, 384)), f"ckpt:runs/{name}_imagenet")
    config.evals["val"].transform.crop_ratio = 1.0
    return taught(config)
