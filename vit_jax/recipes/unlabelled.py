# SPDX-License-Identifier: Apache-2.0
"""Self-supervision of a small ViT on scikit-learn's digits; values are not tuned."""

import dataclasses
from collections.abc import Callable

from vit_jax import models
from vit_jax.config import Config
from vit_jax.data import Crop, MixConfig, TransformConfig
from vit_jax.evals import KNNEval, LossEval
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import (
    Balance,
    DinoConfig,
    HeadConfig,
    MaeConfig,
    MaskedPatchConfig,
    ObjectiveConfig,
)
from vit_jax.recipes import choose
from vit_jax.recipes import digits as scans

_HEAD = HeadConfig(prototypes=256, hidden_dim=128, bottleneck_dim=32)
_SMALL = TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.2, 0.5))
_LARGE = TransformConfig(
    crop=Crop.RANDOM_RESIZED, area=(0.5, 1.0), degrees=15.0, translate=(0.1, 0.1), shear=10.0
)


def _dino() -> DinoConfig:
    return DinoConfig(
        second=dataclasses.replace(_LARGE),
        small=dataclasses.replace(_SMALL),
        small_crops=2,
        small_size=(16, 16),
        head=dataclasses.replace(_HEAD),
        patch_head=dataclasses.replace(_HEAD),
        temperature_warmup="10%",
    )


RUNS: dict[str, Callable[[], ObjectiveConfig]] = {
    "mpp": MaskedPatchConfig,
    # Grey pixels of a patch that is all paper have no deviation to divide by.
    "mae": lambda: MaeConfig(decoder_dim=32, decoder_depth=2, decoder_heads=4, norm_pix=False),
    "dino": _dino,
    "dinov2": lambda: dataclasses.replace(
        _dino(), balance=Balance.SINKHORN, patch_weight=1.0, spread_weight=0.1
    ),
}


def digits(run: str) -> Config:
    """Train on the 1,293 training scans without their labels, for 4,000 steps of 128.

    Neighbours among 144 labelled scans are measured on the next 144 while it trains.

    Raises UserError: no such run.
    """
    choose("run", run, RUNS)
    objective = RUNS[run]()
    two = objective.needs_average  # crops of two sizes
    model = models.with_fields(
        scans.deit(),
        {
            "distilled": False,
            "num_classes": 0,
            "pool": Pool.CLS if two else Pool.GAP,
            "dynamic_image_size": two,
        },
    )
    config = scans.digits(model)
    config.objective = objective
    config.data.mix, config.data.batch_size = MixConfig(), 128
    config.duration, config.optim.warmup = "4000 steps", "5%"
    plain = TransformConfig(crop=Crop.RESIZE)
    near = {"split": "train[1293:]", "train_split": "train[:144]", "k": (5,)}
    config.evals = {"knn": KNNEval(every="10%", transform=plain, **near)}
    config.checkpoint.metric, config.checkpoint.every = "knn/knn5", "10%"
    config.log.every = "200 steps"
    if objective.needs_average:
        config.data.transform = dataclasses.replace(_LARGE)
        config.ema_decay, config.ema_decay_end = 0.99, 1.0
        config.checkpoint.metric = "knn_ema/knn5"
    else:
        loss = LossEval(split="train[1293:]", every="10%", transform=dataclasses.replace(plain))
        config.evals["val"] = loss
    return config
