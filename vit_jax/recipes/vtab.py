# SPDX-License-Identifier: Apache-2.0
"""VTAB-1k (arXiv:1910.04867): 19 tasks of 1,000 images, as task_adaptation has them.

Splits and labels are those of google-research/task_adaptation, the settings those of the ViT paper
(arXiv:2010.11929 table 4 and appendix B.1.1).
"""

from collections.abc import Mapping
from typing import NamedTuple

from vit_jax import models
from vit_jax.config import CheckpointConfig
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.models import DType
from vit_jax.optim import MomentDtype, OptimConfig, Optimizer
from vit_jax.recipes import choose
from vit_jax.weights.config import InitConfig


class VtabTask(NamedTuple):
    """A task: its group, its dataset, where its last 200 images begin, its test split, K."""

    group: str
    dataset: str
    val: str
    test: str
    num_classes: int


_LATE, _VAL, _60, _80 = "train[90%:90%", "validation[", "train[60%:60%", "train[80%:80%"
_NATURAL, _SPECIALIZED, _STRUCTURED = "Natural", "Specialized", "Structured"
TASKS: Mapping[str, VtabTask] = {
    "caltech101": VtabTask(_NATURAL, "caltech101:3", _LATE, "test", 102),
    "cifar100": VtabTask(_NATURAL, "cifar100:3", _LATE, "test", 100),
    "dtd": VtabTask(_NATURAL, "dtd:3", _VAL, "test", 47),
    "flowers": VtabTask(_NATURAL, "oxford_flowers102:2", _VAL, "test", 102),
    "pets": VtabTask(_NATURAL, "oxford_iiit_pet:3", _80, "test", 37),
    "sun397": VtabTask(_NATURAL, "sun397/tfds:4", _VAL, "test", 397),
    "svhn": VtabTask(_NATURAL, "svhn_cropped:3", _LATE, "test", 10),
    "camelyon": VtabTask(_SPECIALIZED, "patch_camelyon:2", _VAL, "test", 2),
    "eurosat": VtabTask(_SPECIALIZED, "eurosat/rgb:2", _60, "train[80%:]", 10),
    "resisc45": VtabTask(_SPECIALIZED, "resisc45:3", _60, "train[80%:]", 45),
    "retinopathy": VtabTask(
        _SPECIALIZED, "diabetic_retinopathy_detection/btgraham-300:3", _VAL, "test", 5
    ),
    "clevr_count": VtabTask(_STRUCTURED, "clevr:3?label=count", _LATE, "validation", 8),
    "clevr_distance": VtabTask(_STRUCTURED, "clevr:3?label=distance", _LATE, "validation", 6),
    "dmlab": VtabTask(_STRUCTURED, "dmlab:2.0.1", _VAL, "test", 6),
    "dsprites_location": VtabTask(_STRUCTURED, "dsprites:2?label=location", _80, "train[90%:]", 16),
    "dsprites_orientation": VtabTask(
        _STRUCTURED, "dsprites:2?label=orientation", _80, "train[90%:]", 16
    ),
    "kitti_distance": VtabTask(_STRUCTURED, "kitti:3?label=distance", _VAL, "test", 4),
    "smallnorb_azimuth": VtabTask(
        _STRUCTURED, "smallnorb:2?label=label_azimuth", "test[", "test[50%:]", 18
    ),
    "smallnorb_elevation": VtabTask(
        _STRUCTURED, "smallnorb:2?label=label_elevation", "test[", "test[50%:]", 9
    ),
}

# Top-1 in per cent, arXiv:2010.11929 table 9 (L/16 from ImageNet-21k); mean of all, table 2.
_L16 = (
    "90.8 84.1 74.1 99.3 92.7 61.0 80.9 82.5 95.6 85.2 75.3 70.3 56.1 41.9 74.7 64.9 79.9 30.5 41.7"
)
PUBLISHED: Mapping[str, float] = dict(zip(TASKS, map(float, _L16.split()), strict=True))
MEANS = {"ViT-L/16, ImageNet-21k": 72.72, "ViT-L/16, JFT": 76.28, "ViT-H/14, JFT": 77.63}


def train_split(task: VtabTask) -> str:
    """Return the 800 images to train on with the 200 that choices are made by."""
    start = task.val
    return f"train[:800]+{start}{'+' if start.endswith('%') else ':'}200]"


def vit(task: str, model: str = "vit_l16", weights: str = "npz:ViT-L_16.npz") -> Config:
    """Fine-tune a ViT on the 1,000 images of a task, and test it once on the whole test split.

    SGD with momentum 0.9 (stored in bfloat16), lr 0.01, cosine, 2,500 steps with 500 of warmup in
    batches of 512, clipping at global norm 1. Every image is resized to 384 x 384, and that is all,
    as in task_adaptation.

    Raises UserError: no such task.
    """
    chosen = TASKS[choose("task", task, TASKS)]
    plain = TransformConfig(crop=Crop.RESIZE)
    # Differs from paper: bfloat16 matmuls; --config.model.dtype=float32 undoes it.
    network = models.variant(f"{model}_384", num_classes=chosen.num_classes, dtype=DType.BFLOAT16)
    return Config(
        model=network,
        data=DataConfig(
            name=chosen.dataset,
            train_split=train_split(chosen),
            batch_size=512,
            transform=plain,
            cache=True,
        ),
        optim=OptimConfig(
            name=Optimizer.SGD,
            lr=0.01,
            warmup="500 steps",
            clip_norm=1.0,
            mu_dtype=MomentDtype.BFLOAT16,
        ),
        init=InitConfig(weights=weights, skip=("^head/", "^pre_logits/")),
        duration="2500 steps",
        evals={"test": ClassifyEval(split=chosen.test, transform=plain, report=True)},
        checkpoint=CheckpointConfig(every="20%", keep_best=0),
        log=LogConfig(every="10 steps"),
    )
