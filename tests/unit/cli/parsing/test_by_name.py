# SPDX-License-Identifier: Apache-2.0
"""A model, a transform or an evaluation is set by its name, and flags for its fields follow."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.refusals import Told, refused_as
from vit_jax import models
from vit_jax.cli.parsing import flags
from vit_jax.data import Crop
from vit_jax.evals import ClassifyEval, KNNEval
from vit_jax.models import DType
from vit_jax.recipes import TRANSFORMS, transform

CONFIGS = Path(__file__).parents[4] / "configs"


def read(*words: str, config: str = "vit_s16_imagenet_90ep") -> Any:
    return flags.read_config(["main.py", f"--config={CONFIGS / config}.py", *words])


def test_a_model_keeps_what_the_data_and_the_machine_ask_for() -> None:
    model = read("--config.model=deit_ti16", "--config.model.depth=5").model
    plain = models.variant("deit_ti16")
    assert (model.dim, model.depth, model.gelu) == (plain.dim, 5, plain.gelu)
    assert model.dtype is DType.BFLOAT16  # the config's
    digits = read("--config.model=vit_ti16", "--config.model.patch=2", config="vit_mu_digits").model
    assert (digits.num_classes, digits.image_size, digits.channels) == (10, (32, 32), 1)
    assert (digits.dim, digits.patch) == (192, (2,))


def test_a_size_in_the_name_counts() -> None:
    assert read("--config.model=vit_s16_384").model.image_size == (384, 384)
    assert read("--config.model=swin_t").model.image_size == (224, 224)


def test_a_teacher_by_name() -> None:
    cfg = read("--config.objective.distill.teacher=resnet50", config="bit_r50x1_imagenet_distilled")
    assert cfg.objective.distill.teacher.num_classes == 1000
    assert type(cfg.objective.distill.teacher).__name__ == "ResNetConfig"


def test_a_transform_by_name_and_its_fields() -> None:
    cfg = read("--config.data.transform=deit", "--config.data.transform.flip=false")
    assert cfg.data.transform.crop is Crop.RANDOM_RESIZED
    assert not cfg.data.transform.flip
    assert TRANSFORMS["deit"].flip  # the table's own is not changed
    for name in TRANSFORMS:
        assert transform(name) == TRANSFORMS[name] is not transform(name)


def test_evaluations_come_and_go(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--config.evals.near=knn", "--config.evals.near.k=5,10", "--config.evals.test=none"]
    cfg = read(*words, config="vit_mu_digits")
    assert list(cfg.evals) == ["val", "near"]
    near = cfg.evals["near"]
    assert isinstance(near, KNNEval)
    assert (near.split, near.every, near.k) == (cfg.evals["val"].split, "5 epochs", (5, 10))
    assert near.transform == cfg.evals["val"].transform
    assert near.transform is not cfg.evals["val"].transform
    words = ["--config.evals.val=knn", "--config.checkpoint.metric=val/knn20"]
    replaced = read(*words, config="vit_mu_digits").evals
    assert isinstance(replaced["val"], KNNEval)
    assert isinstance(replaced["test"], ClassifyEval)
    alone = ["--config.evals.val=none", "--config.evals.test=none", "--config.evals.a=loss"]
    assert list(read(*alone, config="vit_mu_digits").evals) == ["a"]


@pytest.mark.parametrize(
    "words, message",
    [
        (["--config.model=vit_s166"], ("models.variant", "")),
        (["--config.evals.val=top1"], "unknown --config.evals.val 'top1'; valid: classify, "),
        (["--config.evals.vall=none"], "'vall'; did you mean 'val' or"),
        (
            ["--config.data.transform=incept"],
            ("recipes.transform", "data.transform"),
        ),
        (
            ["--config.evals.val.transform=cent"],
            ("recipes.transform", "evals.val.transform"),
        ),
        (["--config.evals.A=knn"], ("config.checks.evals_fit", "")),
    ],
)
def test_an_unknown_name_is_refused(words: Sequence[str], message: Told) -> None:
    with refused_as(message):
        read(*words)
