# SPDX-License-Identifier: Apache-2.0
"""Distillation against DeiT's own losses and numbers by hand; what the teacher is given."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.models.tiny import TINY
from vit_jax.data import DataConfig, MixConfig
from vit_jax.distill import Distillation, TeacherConfig
from vit_jax.errors import UserError
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


def refused(match: str, **fields: Any) -> None:
    objective = {k: fields.pop(k) for k in ("label_smoothing", "binarize") if k in fields}
    model = fields.pop("model", TINY["vit"])
    data = DataConfig(**fields.pop("data", {}))
    teacher = {"kind": Distillation.KL, "weights": "ckpt:x", "teacher": TINY["regnet"]}
    cfg = DistillConfig(distill=TeacherConfig(**{**teacher, **fields}), **objective)
    with pytest.raises(UserError, match=match) as error:
        check(cfg, model, data)
    assert "\n" not in str(error.value)


def test_settings_that_cannot_be() -> None:
    token = dataclasses.replace(TINY["deit"], num_classes=3)
    refused("alpha", alpha=0.0)
    refused("alpha", alpha=1.1)
    refused("temperature", temperature=0.0)
    refused("temperature has no effect", kind=Distillation.HARD, temperature=2.0)
    refused("label_smoothing", alpha=1.0, label_smoothing=0.1)
    refused("weights is not set", weights="")
    refused("distill.ema", weights="npz:x", ema=True)
    refused("distill.std", std=(0.0,))
    refused("distill.mean", mean=(0.5, 0.5))
    refused("class head", model=token, alpha=1.0)
    grey = dataclasses.replace(TINY["regnet"], channels=1)
    refused("teacher.channels=1 .* model.channels=3", teacher=grey)
    many = dataclasses.replace(TINY["regnet"], num_classes=5)
    refused("teacher.num_classes=5 .* model.num_classes=3", teacher=many)
    refused(r"distill\.teacher\.depth=0", teacher=dataclasses.replace(TINY["regnet"], depth=0))
    dropping = dataclasses.replace(TINY["regnet"], drop_path_rate=0.1)
    refused(r"teacher\.drop_path_rate=0\.1 has no effect on a teacher", teacher=dropping)
    for key in ("dropout_rate", "attention_dropout_rate", "drop_path_rate"):
        dropping = dataclasses.replace(TINY["vit"], **{key: 0.2})
        refused(rf"distill\.teacher\.{key}=0\.2 has no effect", teacher=dropping)
    end = r"=0, or objective\.distill\.cache=''$"
    for key in ("mixup_alpha", "cutmix_alpha"):
        mix = MixConfig(**{key: 0.1})
        refused(
            rf"not mixed and not erased: set data\.mix\.{key}{end}", cache="x", data={"mix": mix}
        )
    refused(rf"not erased: set data\.erasing_prob{end}", cache="x", data={"erasing_prob": 0.1})
