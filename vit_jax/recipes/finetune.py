# SPDX-License-Identifier: Apache-2.0
"""From ImageNet-21k to other datasets: the ViT paper's fine-tuning, and BiT-HyperRule."""

from typing import NamedTuple

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, Partner, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import DType, ModelConfig
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer, Schedule
from vit_jax.recipes import choose
from vit_jax.weights.config import InitConfig


class Task(NamedTuple):
    """A dataset: classes, images of its train split, their side, splits, and ViT's settings."""

    num_classes: int
    num_examples: int
    side: int
    val_share: int  # per cent of train that is held out: arXiv:2010.11929 section 4.1
    test: str
    steps: int
    warmup: int
    lr: float  # of the paper's grid: see `vit`


# Flowers trains on TFDS's split train alone, 1,020 images, as in big_vision's transfer.py: the
# paper does not specify whether it adds the validation split.
TASKS = {
    "cifar10": Task(10, 50_000, 32, 2, "test", 10_000, 500, 0.03),
    "cifar100": Task(100, 50_000, 32, 2, "test", 10_000, 500, 0.03),
    "oxford_iiit_pet": Task(37, 3_680, 224, 10, "test", 500, 100, 0.003),
    "oxford_flowers102": Task(102, 1_020, 224, 10, "test", 500, 100, 0.003),
    "imagenet2012": Task(1000, 1_281_167, 224, 1, "validation", 20_000, 500, 0.03),
}


def _run(
    dataset: str,
    model: ModelConfig,
    transform: TransformConfig,
    optim: OptimConfig,
    init: InitConfig,
    steps: int,
    mix: MixConfig | None = None,
) -> Config:
    """Fine-tune on a dataset in batches of 512.

    Evaluate on the held-out images, to choose settings by, and once on the test split; the whole
    image is squashed to the model's size, as in both codebases.
    """
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    model.dtype = DType.BFLOAT16
    task, plain = TASKS[dataset], TransformConfig(crop=Crop.RESIZE)
    cut = 100 - task.val_share
    return Config(
        model=model,
        data=DataConfig(
            name=dataset,
            train_split=f"train[:{cut}%]",
            batch_size=512,
            transform=transform,
            mix=mix or MixConfig(),
        ),
        optim=optim,
        init=init,
        duration=f"{steps} steps",
        evals={
            "val": ClassifyEval(split=f"train[{cut}%:]", every="10%", transform=plain),
            "test": ClassifyEval(split=task.test, transform=plain, report=True),
        },
        checkpoint=CheckpointConfig(every="10%"),
        log=LogConfig(every="10 steps"),
    )


def vit(dataset: str, model: str = "vit_b16", weights: str = "npz:ViT-B_16.npz") -> Config:
    """Fine-tune a ViT at 384: arXiv:2010.11929 table 4, google-research/vision_transformer.

    SGD with momentum 0.9 (stored in bfloat16), cosine, batch 512, no weight decay, clipping at
    global norm 1, no dropout, Inception crops and flips; a new head of zeros instead of both layers
    of the old one. The paper chooses lr on the held-out images from 0.003, 0.01, 0.03, 0.06 for
    ImageNet, 0.001, 0.003, 0.01, 0.03 for the others; here 0.03, vision_transformer's default, and
    for Pets and Flowers 0.003, which big_vision's transfer.py found best.

    Raises UserError: no such dataset.
    """
    task = TASKS[choose("dataset", dataset, TASKS)]
    optim = OptimConfig(
        name=Optimizer.SGD,
        lr=task.lr,
        warmup=f"{task.warmup} steps",
        clip_norm=1.0,
        mu_dtype=MomentDtype.BFLOAT16,
    )
    network = models.variant(f"{model}_384", num_classes=task.num_classes)
    transform = TransformConfig(crop=Crop.INCEPTION, flip=True)
    init = InitConfig(weights=weights, skip=("^head/", "^pre_logits/"))
    return _run(dataset, network, transform, optim, init, task.steps)


def bit(dataset: str, model: str = "bit_r50x1", weights: str = "npz:BiT-M-R50x1.npz") -> Config:
    """Fine-tune a BiT by BiT-HyperRule: arXiv:1912.11370, big_transfer bit_hyperrule.py.

    SGD with momentum 0.9, lr 0.003, batch 512, no weight decay, no clipping. Datasets below 20k,
    below 500k, and larger train for 500, 10k and 20k steps, with 100, 500 and 500 of warmup, and lr
    divided by 10 three times; mixup 0.1 except for the smallest. Images below 96 x 96 are resized
    to 160 and cropped to a random 128, others to 512 and 480.

    Raises UserError: no such dataset.
    """
    task = TASKS[choose("dataset", dataset, TASKS)]
    if task.num_examples < 20_000:
        warmup, *milestones, steps = 100, 200, 300, 400, 500
    elif task.num_examples < 500_000:
        warmup, *milestones, steps = 500, 3_000, 6_000, 9_000, 10_000
    else:
        warmup, *milestones, steps = 500, 6_000, 12_000, 18_000, 20_000
    precrop, side = (160, 128) if task.side < 96 else (512, 480)
    # Differs from paper: lr falls at these steps; in the authors' code one update later.
    optim = OptimConfig(
        name=Optimizer.SGD,
        lr=0.003,
        schedule=Schedule.STEP,
        milestones=tuple(f"{step} steps" for step in milestones),
        warmup=f"{warmup} steps",
        clip_norm=0.0,
    )
    network = models.variant(model, num_classes=task.num_classes, image_size=(side, side))
    transform = TransformConfig(crop=Crop.SQUASH_RANDOM, crop_ratio=side / precrop, flip=True)
    mix = MixConfig(mixup_alpha=0.1, partner=Partner.REVERSED) if steps > 500 else None
    init = InitConfig(weights=weights, skip=("^head/",))
    return _run(dataset, network, transform, optim, init, steps, mix)
