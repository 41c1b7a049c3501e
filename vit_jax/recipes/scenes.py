# SPDX-License-Identifier: Apache-2.0
"""Small runs on letters drawn on photographs (`benchmarks.scenes`): masks, boxes and depth.

A ViT of 0.2 million parameters for scenes of 64 x 64 pixels learns other letters first; all runs
start from it.
"""

import dataclasses

from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.targets import TargetKind
from vit_jax.evals import DepthEval, EvalConfig, InstanceEval, SegmentationEval
from vit_jax.models import ModelConfig
from vit_jax.objectives import (
    DepthConfig,
    DepthHead,
    EomtConfig,
    MaskLossConfig,
    ObjectiveConfig,
    SegmentConfig,
)
from vit_jax.optim import OptimConfig
from vit_jax.recipes import choose, dense, digits
from vit_jax.weights.config import InitConfig

PLACE = "runs/scenes"  # of `python -m benchmarks.scenes runs/scenes`
_PLAIN = TransformConfig(crop=Crop.RESIZE)
# A mask has 16 x 16 pixels, and is compared at half as many points.
_LOSS = MaskLossConfig(points=128)


def encoder() -> ModelConfig:
    """Return the digits' ViT for scenes in colour."""
    return dataclasses.replace(digits.vit(), num_classes=0, image_size=(64, 64), channels=3)


def _objectives() -> dict[str, tuple[str, ObjectiveConfig, EvalConfig]]:
    """Return what each run reads, learns and is measured by."""
    masks, coco = f"masks:{PLACE}", f"coco:{PLACE}/coco?images={PLACE}/images"
    pixels = SegmentationEval(transform=_PLAIN, report=True)
    objects = InstanceEval(transform=_PLAIN, report=True)
    depth = DepthEval(transform=_PLAIN)
    near = {"min_depth": 0.5, "max_depth": 5.0, "variance_after": 0}
    few = {"queries": 16, "blocks": 2, "loss": _LOSS}
    dpt = dense.small_dpt()
    return {
        PRETRAINING: (f"masks:{PLACE}/others", EomtConfig(**few), pixels),
        "linear": (masks, SegmentConfig(), pixels),
        "linear_trained": (masks, SegmentConfig(frozen=False), pixels),
        "eomt": (masks, EomtConfig(**few), pixels),
        "instances": (coco, EomtConfig(target=TargetKind.SEGMENTS, **few), objects),
        "depth_linear": (f"depth:{PLACE}", DepthConfig(frozen=True, **near), depth),
        "depth_dpt": (f"depth:{PLACE}", DepthConfig(head=DepthHead.DPT, dpt=dpt), depth),
    }


PRETRAINING = "others"
RUNS = (PRETRAINING, "linear", "linear_trained", "eomt", "instances", "depth_linear", "depth_dpt")


def scenes(run: str) -> Config:
    """Return one of RUNS: 8 epochs (other letters: 20) of Muon, or of AdamW for a head alone.

    The settings of Muon are those of the digits (`recipes.digits`); none was tuned on scenes.

    Raises UserError: no such run.
    """
    name, objective, measured = _objectives()[choose("run", run, RUNS)]
    optim = digits.muon("5%")
    if getattr(objective, "frozen", False):
        optim = OptimConfig(lr=1e-2, weight_decay=0.0, warmup="5%", clip_norm=0.0)
    return Config(
        model=encoder(),
        data=DataConfig(
            name=name,
            train_split="train",
            batch_size=64,
            # Letters in a mirror are others.
            transform=TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.5, 1.0)),
            cache=True,
            max_segments=4,  # a scene has three letters at most
        ),
        objective=objective,
        optim=optim,
        duration="20 epochs" if run == PRETRAINING else "8 epochs",
        evals={"val": measured},
        init=InitConfig(weights="" if run == PRETRAINING else f"ckpt:{PLACE}_{PRETRAINING}"),
        checkpoint=CheckpointConfig(every="25%", keep_best=0),
        log=LogConfig(every="50 steps"),
    )
