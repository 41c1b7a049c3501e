# SPDX-License-Identifier: Apache-2.0
"""Distillation against DeiT's own losses and numbers by hand; what the teacher is given."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import RANGE, Told, refused_as
from tests.unit.models.tiny import TINY
from vit_jax.data import DataConfig, MixConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.models import ModelConfig, Output
from vit_jax.objectives import Context, Distill, DistillConfig
from vit_jax.settings.fields import conform

TABLE = np.load(Path(__file__).parents[2] / "golden" / "distill_tables.npz")
RNG = jax.random.key(0)


def distill(aux: bool, cfg: TeacherConfig, seen: dict | None = None, **objective: Any) -> Distill:
    """Return an objective whose student says what its parameters are, and its teacher likewise."""

    class Told(Distill):
        teacher = staticmethod(lambda variables, image: variables)

        def apply(self, params: Any, model_state: Any, image: Any, rng: Any, *, train: bool) -> Any:
            if seen is not None:
                seen.update(train=train)
            both = {"cls_logits": params["cls"], "dist_logits": params["dist"]}
            mean = (params["cls"] + params["dist"]) / 2
            out = Output(mean, None, None, both) if aux else Output(params["cls"], None, None)
            return out, {"count": model_state.get("count", 0) + 1}

    data = DataConfig(mean=(0.5,), std=(0.5,))
    model = dataclasses.replace(TINY["vit"], num_classes=7)
    return Told(DistillConfig(distill=cfg, **objective), model, data)


def context(frozen: Any, model_state: Any = None) -> Context:
    return Context(frozen=frozen, model_state=model_state or {}, ema=None, objective=None, step=0)


def table(*names: str) -> list[jax.Array]:
    return [jnp.asarray(TABLE[f"loss|{name}"]) for name in names]


LOGITS_, KD, TAUGHT = table("logits", "kd_logits", "teacher_logits")
TARGETS = jnp.asarray(TABLE["mixup_target|lam=0.3,smoothing=0.1"])
BATCH = {"image": jnp.zeros((len(LOGITS_), 1, 1, 1)), "targets": TARGETS}
PARAMS = {"cls": LOGITS_, "dist": KD}


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(np.asarray(x, np.float64))
    return e / e.sum(axis=-1, keepdims=True)


@pytest.mark.parametrize("token", [True, False])
def test_function_matching_by_hand(token: bool) -> None:
    cfg = TeacherConfig(kind=Distillation.KL, alpha=0.75, temperature=2.0)
    objective = distill(token, cfg)
    ctx = context({"teacher": TAUGHT}, {"count": 4})
    loss, (metrics, state, _) = objective.loss(PARAMS, ctx, BATCH, RNG)
    student = KD if token else LOGITS_
    t, s = softmax(TAUGHT / 2), softmax(student / 2)
    kl = 4 * (t * np.log(t / s)).sum(axis=1).mean()
    base = -(np.asarray(TARGETS) * np.log(softmax(LOGITS_))).sum(axis=1).mean()
    np.testing.assert_allclose(metrics["distill_loss"], kl, rtol=1e-5)
    np.testing.assert_allclose(loss, 0.25 * base + 0.75 * kl, rtol=1e-5)
    assert state == {"count": 5}
    guess, label = np.asarray(TAUGHT).argmax(1), np.asarray(TARGETS).argmax(1)
    assert metrics["teacher_top1"] == pytest.approx((guess == label).mean())
    assert metrics["teacher_agreement"] == pytest.approx(
        (guess == np.asarray(student).argmax(1)).mean()
    )
    said = np.asarray((LOGITS_ + KD) / 2 if token else LOGITS_).argmax(1)
    assert metrics["top1"] == pytest.approx((said == label).mean())


@pytest.mark.parametrize("train", [True, False])
def test_the_base_decides_whether_the_student_trains(train: bool) -> None:
    seen: dict = {}
    cfg = TeacherConfig(kind=Distillation.HARD)
    objective = distill(True, cfg, seen, train_mode=train)
    objective.loss(PARAMS, context({"teacher": TAUGHT}), BATCH, RNG)
    assert seen["train"] is train


def check(cfg: DistillConfig, model: ModelConfig, data: DataConfig) -> None:
    conform(cfg, "objective.")
    cfg.check(model, data)


def refused(told: Told, **fields: Any) -> None:
    objective = {k: fields.pop(k) for k in ("label_smoothing", "binarize") if k in fields}
    model = fields.pop("model", TINY["vit"])
    data = DataConfig(**fields.pop("data", {}))
    teacher = {"kind": Distillation.KL, "weights": "ckpt:x", "teacher": TINY["regnet"]}
    cfg = DistillConfig(distill=TeacherConfig(**{**teacher, **fields}), **objective)
    with refused_as(told) as error:
        check(cfg, model, data)
    assert "\n" not in str(error.value)


def test_settings_that_cannot_be() -> None:
    token = dataclasses.replace(TINY["deit"], num_classes=3)

    def at(field: str, code: str = "distill.config.check") -> Told:
        return code, f"objective.distill.{field}"

    for alpha in (0.0, 1.1):
        refused(at("alpha", RANGE), alpha=alpha)
    refused(at("temperature", RANGE), temperature=0.0)
    refused(at("temperature"), kind=Distillation.HARD, temperature=2.0)
    refused("label_smoothing", alpha=1.0, label_smoothing=0.1)
    refused(("distill.config.check", ""), weights="")
    refused(("distill.config.check", ""), weights="npz:x", ema=True)
    refused(at("std", RANGE), std=(0.0,))
    refused(at("mean"), mean=(0.5, 0.5))
    refused(at("alpha"), model=token, alpha=1.0)
    grey = dataclasses.replace(TINY["regnet"], channels=1)
    refused(at("teacher.channels"), teacher=grey)
    many = dataclasses.replace(TINY["regnet"], num_classes=5)
    refused(at("teacher.num_classes"), teacher=many)
    flat = dataclasses.replace(TINY["regnet"], depth=0)
    refused(at("teacher.depth", RANGE), teacher=flat)
    dropping = dataclasses.replace(TINY["regnet"], drop_path_rate=0.1)
    refused(at("teacher.drop_path_rate"), teacher=dropping)
    for key in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        dropping = dataclasses.replace(TINY["vit"], **{key: 0.2})
        refused(at(f"teacher.{key}"), teacher=dropping)
    mixed: Told = ("distill.config.check_unmixed", "")
    for key in ("mixup_alpha", "cutmix_alpha"):
        refused(mixed, cache="x", data={"mix": MixConfig(**{key: 0.1})})
    refused(mixed, cache="x", data={"erasing_prob": 0.1})
