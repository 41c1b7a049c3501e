# SPDX-License-Identifier: Apache-2.0
r"""ViT-mu on scikit-learn's handwritten digits: the first run, in minutes on a laptop."""

from vit_jax import models
from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.evals import EvalConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.optim import OptimConfig


def get_config() -> Config:
    plain = TransformConfig(crop=Crop.NONE)
    return Config(
        model=models.variant(
            "vit_mu8",
            num_classes=10,
            image_size=(8, 8),
            channels=1,
            patch=(2, 2),
            dim=64,
            depth=4,
            num_heads=4,
            mlp_dim=256,
            class_token=False,
            pool=Pool.GAP,
            drop_path_rate=0.1,
        ),
        data=DataConfig(
            name="digits",
            train_split="train[:1293]",
            batch_size=128,
            transform=TransformConfig(
                crop=Crop.NONE,
                degrees=15.0,
                translate=(0.1, 0.1),
                scale=(0.85, 1.15),
                shear=10.0,
            ),
            cache=True,
        ),
        optim=OptimConfig(lr=2e-3, weight_decay=0.05, warmup="5 epochs", clip_norm=1.0),
        duration="150 epochs",
        evals={
            "val": EvalConfig(split="train[1293:]", every="5 epochs", transform=plain),
            "test": EvalConfig(split="test", transform=plain, report=True),
        },
        checkpoint=CheckpointConfig(every="10 epochs"),
        log=LogConfig(every="50 steps"),
    )
