# SPDX-License-Identifier: Apache-2.0
"""One's own images: settings that fit hundreds or hundreds of thousands of them."""

from vit_jax import models
from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import DataConfig, MixConfig
from vit_jax.evals import ClassifyEval
from vit_jax.objectives import SupervisedConfig
from vit_jax.optim import OptimConfig
from vit_jax.recipes.transforms import transform
from vit_jax.weights.config import InitConfig


def images(variant: str = "vit_s16") -> Config:
    """Train on a folder or a table of images, from published weights where init.weights has some.

    The dataset decides the number of classes, the batch and the duration (`config.fitted`). AdamW,
    random boxes, flips, mixup; the best checkpoint on val is kept. Values common for ViTs, not
    tuned: letters want data.transform.flip=false, published weights a lower optim.lr.
    """
    train = transform("random_resized")
    train.area = (0.35, 1.0)  # small sets of objects, not ImageNet's scenes
    return Config(
        model=models.variant(variant, num_classes=0, drop_path_rate=0.1),
        data=DataConfig(
            name="",
            batch_size=0,
            transform=train,
            mix=MixConfig(mixup_alpha=0.2),
            cache=True,
        ),
        optim=OptimConfig(lr=5e-4, weight_decay=0.05, warmup="10%", clip_norm=1.0),
        objective=SupervisedConfig(label_smoothing=0.1),
        init=InitConfig(new_head=True),
        duration="auto",
        evals={
            "val": ClassifyEval(split="val", every="5%", transform=transform("resize"), report=True)
        },
        checkpoint=CheckpointConfig(every="5%"),
        log=LogConfig(every="1%"),
    )
