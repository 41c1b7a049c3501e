# SPDX-License-Identifier: Apache-2.0
r"""A small ViT on scikit-learn's handwritten digits (1,797 real scans): the first run to try.

    python main.py --config=configs/vit_mu_digits.py --workdir=runs/digits

Hardware: 2 CPU cores, about two minutes.
Published: none; `python -m benchmarks.digits` measures test top-1 (README), where an RBF
support-vector machine reaches 96.4 % and k nearest neighbours 96.7 %. The test images are of
writers that training never saw. Tuned by cross-validation over blocks of the training scans only.
"""

from vit_jax import models
from vit_jax.config import CheckpointConfig, Config, LogConfig
from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.optim import OptimConfig, Optimizer


def get_config() -> Config:
    # Enlarged four times: a warp at 8x8 pixels would blur the strokes away.
    plain = TransformConfig(crop=Crop.RESIZE)
    return Config(
        model=models.variant(
            "vit_mu8",
            num_classes=10,
            image_size=(32, 32),
            channels=1,
            dim=64,
            depth=4,
            num_heads=4,
            mlp_dim=256,
            class_token=False,
            pool=Pool.GAP,
            pos_embed=PosEmbed.SINCOS2D,
        ),
        data=DataConfig(
            name="digits",
            train_split="train[:1293]",
            batch_size=64,
            transform=TransformConfig(
                crop=Crop.RESIZE,
                degrees=15.0,
                translate=(0.1, 0.1),
                scale=(0.85, 1.15),
                shear=10.0,
            ),
            mix=MixConfig(mixup_alpha=1.0),
            cache=True,
        ),
        optim=OptimConfig(
            name=Optimizer.MUON,
            lr=4e-3,
            momentum=0.95,
            nesterov=True,
            weight_decay=0.05,
            warmup="5 epochs",
            clip_norm=1.0,
        ),
        duration="80 epochs",
        evals={
            "val": ClassifyEval(split="train[1293:]", every="5 epochs", transform=plain),
            "test": ClassifyEval(split="test", transform=plain, report=True),
        },
        checkpoint=CheckpointConfig(every="10 epochs"),
        log=LogConfig(every="50 steps"),
    )
