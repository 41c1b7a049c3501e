# SPDX-License-Identifier: Apache-2.0
"""Learning without labels from hidden patches: the ViT paper's prediction of colours, MAE, Hiera.

Hiera (arXiv:2306.00989) is fine-tuned from its masked pretraining.
"""

import dataclasses
from typing import Any

from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, CropRule, DataConfig, Resize, TransformConfig
from vit_jax.evals import EvalConfig, KNNEval, LossEval
from vit_jax.models import DType, ModelConfig, ViTConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.objectives import MaeConfig, MaskedPatchConfig, SupervisedConfig
from vit_jax.optim import OptimConfig, Optimizer, Schedule
from vit_jax.recipes import MEAN, STD, choose, val
from vit_jax.recipes.imagenet import deit, google
from vit_jax.weights.config import InitConfig

SIZES = ("b16", "l16", "h14")
# Epochs, lr over 256 images, layer decay and stochastic depth of MAE's fine-tuning.
_FINETUNED = {
    "b16": (100, 5e-4, 0.65, 0.1),
    "l16": (50, 1e-3, 0.75, 0.2),
    "h14": (50, 1e-3, 0.75, 0.3),
}
# Epochs of its linear probe.
_PROBED = {"b16": 90, "l16": 50, "h14": 50}


def _evals(held_out: str, plain: TransformConfig) -> dict[str, EvalConfig]:
    """Measure the objective's loss, and neighbours in the features of a part of the images."""
    return {
        "val": LossEval(split=held_out, every="10 epochs", transform=plain),
        "knn": KNNEval(
            split="validation", train_split="train[:10%]", every="20 epochs", transform=plain
        ),
    }


def patches(model: ViTConfig) -> Config:
    """Masked patch prediction on ImageNet-1k: arXiv:2010.11929 appendix B.1.2.

    100,000 steps of 4,096 images (the paper has 1M on JFT, and finds little gain after 100k), Adam
    at lr 2e-4, cosine after 10,000 steps of warmup, Inception crops and flips.
    """
    optim = OptimConfig(lr=2e-4, schedule=Schedule.COSINE, warmup="10_000 steps", clip_norm=0.0)
    model = dataclasses.replace(model, num_classes=0)
    config = google.imagenet(model, optim, "100000 steps", "none")
    config.objective = MaskedPatchConfig()
    config.evals = _evals("train[99%:]", config.evals["val"].transform)
    config.checkpoint.metric = "val/loss"
    return config


def _imagenet(transform: TransformConfig, batch_size: int) -> DataConfig:
    return DataConfig(
        name="imagenet2012",
        train_split="train",
        batch_size=batch_size,
        transform=transform,
        mean=MEAN,
        std=STD,
    )


def _crops(*area: float) -> TransformConfig:
    return TransformConfig(crop=Crop.RANDOM_RESIZED, area=area, resize=Resize.BICUBIC, flip=True)


def pretrain(size: str) -> Config:
    """Pretrain a masked autoencoder on ImageNet-1k: arXiv:2111.06377 table 8, main_pretrain.py.

    800 epochs, batch 4,096, AdamW (0.9, 0.95) at lr 1.5e-4 x batch / 256, weight decay 0.05, cosine
    to 0 after 40 epochs of warmup, crops of 20 to 100 % and flips, three quarters hidden, each
    patch's pixels normalised.

    Raises UserError: no such size.
    """
    name = f"mae_{choose('size', size, SIZES)}"
    # Differs from paper: bfloat16 instead of float16 matmuls; --config.model.dtype=float32.
    model = models.variant(name, num_classes=0, dtype=DType.BFLOAT16)
    optim = OptimConfig(lr=2.4e-3, beta2=0.95, weight_decay=0.05, warmup="40 epochs", clip_norm=0.0)
    plain = TransformConfig(crop=Crop.CENTER, crop_rule=CropRule.TORCH, resize=Resize.BICUBIC)
    config = Config(
        model=model,
        data=_imagenet(_crops(0.2, 1.0), 4096),
        optim=optim,
        objective=MaeConfig(),
        duration="800 epochs",
        evals=_evals("validation", plain),
    )
    # The last checkpoint counts, as the authors'.
    config.checkpoint.every, config.checkpoint.keep_best = "10 epochs", 0
    return config


def _classifier(size: str, **fields: Any) -> ViTConfig:
    name = f"mae_{choose('size', size, SIZES)}"
    return models.variant(name, pos_embed=PosEmbed.LEARNED, dtype=DType.BFLOAT16, **fields)


def finetuned(model: ModelConfig, size: str) -> Config:
    """Fine-tune a model of MAE's or like one, by the settings of the ViT of a size (table 9)."""
    epochs, rate, layer_decay, drop_path = _FINETUNED[size]
    config = deit.imagenet(model, epochs=epochs, drop_path_rate=drop_path)
    config.data.repeats, config.ema_decay = 1, 0.0
    config.optim = OptimConfig(
        lr=4 * rate,
        min_lr=1e-6,
        weight_decay=0.05,
        layer_decay=layer_decay,
        warmup="5 epochs",
        clip_norm=0.0,
    )
    return config


def finetune(size: str) -> Config:
    """Fine-tune MAE's encoder on ImageNet-1k: arXiv:2111.06377 table 9, FINETUNE.md.

    100 epochs (L, H: 50), batch 1,024, AdamW at lr 5e-4 (L, H: 1e-3) x batch / 256, cosine to 1e-6
    after 5 epochs of warmup, weight decay 0.05, layer decay 0.65 (0.75), stochastic depth 0.1 (0.2,
    0.3), RandAugment, mixup 0.8, cutmix 1.0, erasing 0.25, smoothing 0.1; the head reads the
    normalised mean of the patches.

    Raises UserError: no such size.
    """
    # The authors' head starts at a deviation of 2e-5: at zero here.
    model = _classifier(size, pool=Pool.GAP, fc_norm=True, zero_head=True)
    config = finetuned(model, size)
    # The norm after the mean is new, that of the tokens before it is not used.
    config.init = InitConfig(weights=f"ckpt:runs/mae_{size}", skip=("^norm/", "^fc_norm/"))
    return config


def linear(size: str) -> Config:
    """Train a linear layer on MAE's frozen encoder: arXiv:2111.06377 table 10, main_linprobe.py.

    90 epochs (L, H: 50), batch 16,384, LARS at lr 0.1 x batch / 256, cosine to 0 after 10 epochs of
    warmup, no weight decay, BatchNorm without scale and bias before the head; crops and flips.

    Raises UserError: no such size.
    """
    # Differs from paper: the head starts Xavier uniform; there normal, of deviation 0.01.
    model = _classifier(size, head_norm=True)
    epochs = _PROBED[size]
    optim = OptimConfig(
        name=Optimizer.LARS, lr=6.4, warmup="10 epochs", clip_norm=0.0, freeze="^(?!head/)"
    )
    config = Config(
        model=model,
        data=_imagenet(_crops(), 16384),
        optim=optim,
        objective=SupervisedConfig(),
        duration=f"{epochs} epochs",
        evals=val("10 epochs", resize=Resize.BICUBIC),
        init=InitConfig(weights=f"ckpt:runs/mae_{size}"),
    )
    config.checkpoint.keep_best = 0
    return config


# By size: timm's name, and MAE's ViT of that kind, whose settings it takes.
HIERA = {
    "t": ("tiny", "b16"),
    "s": ("small", "b16"),
    "b": ("base", "b16"),
    "b_plus": ("base_plus", "b16"),
    "l": ("large", "l16"),
    "h": ("huge", "h14"),
}


def finetune_hiera(size: str) -> Config:
    """Fine-tune Hiera's published encoder as MAE's are: arXiv:2111.06377 table 9.

    Batch 1,024, AdamW, weight decay 0.05, cosine to 1e-6 after 5 epochs of warmup, RandAugment,
    mixup 0.8, cutmix 1.0, erasing 0.25, smoothing 0.1. It starts from timm's file of the pretrained
    encoder, hiera_base_224.mae and so on, without its head.

    Raises UserError: no such size.
    """
    name, of_vit = HIERA[choose("size", size, HIERA)]
    # Differs from paper: it has epochs, rates, layer decay and stochastic depth of its own for each
    # size, which its code does not have; these are MAE's.
    config = finetuned(models.variant(f"hiera_{size}"), of_vit)
    config.init = InitConfig(weights=f"timm:hiera_{name}_224.mae.safetensors")
    return config
