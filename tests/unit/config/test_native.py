# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from tests.refusals import refused_by
from vit_jax import config as config_lib
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import Crop, DataConfig, MixConfig, TransformConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.objectives import MaeConfig

NATIVE = TransformConfig(crop=Crop.NATIVE_RANDOM, lengths=(64,))


def config(model: dict[str, Any] | None = None, **data: Any) -> Config:
    fields = {"batch_size": 16, "transform": NATIVE, **data}
    name = models.variant("naflexvit_b16_gap", num_classes=10, **(model or {}))
    return Config(model=name, data=DataConfig(**fields), duration="2 epochs")


def test_goes_together() -> None:
    config_lib.check(config())
    config_lib.check(config(mix=MixConfig(mixup_alpha=0.2)))
    config_lib.check(config(pack=8))


BAD = {
    "plain model": (lambda c: setattr(c, "model", models.variant("vit_b16")), "crop"),
    "cutmix": (lambda c: setattr(c.data, "mix", MixConfig(cutmix_alpha=1.0)), "cutmix_alpha"),
    "erasing": (lambda c: setattr(c.data, "erasing_prob", 0.1), "erasing_prob"),
    "two lengths": (lambda c: _packed(c, lengths=(32, 64)), "data.pack=8 has rows of one length"),
    "no batch": (lambda c: _packed(c, batch_size=0), "set data.batch_size"),
    "mixup": (lambda c: _packed(c, mix=MixConfig(mixup_alpha=1.0)), "mixes no images"),
    "rows": (lambda c: _packed(c, pack=20), "set fewer"),
    "few": (lambda c: _packed(c, batch_size=1024, pack=2), "set more rows"),
    "crop": (lambda c: _packed(c, transform=TransformConfig()), "native_random"),
    "accum": (lambda c: (_packed(c), setattr(c, "accum_steps", 16)), "accum_steps=16"),
    "objective": (lambda c: _mae(c), "MaeConfig has no rule"),
    "evaluation": (lambda c: _evaluation(c), "draws at random"),
}  # how the config is changed, and the text


def _packed(cfg: Config, lengths: tuple[int, ...] = (64,), **fields: Any) -> None:
    cfg.data.transform = TransformConfig(crop=Crop.NATIVE_RANDOM, lengths=lengths)
    for name, value in {"pack": 8, **fields}.items():
        setattr(cfg.data, name, value)


def _mae(cfg: Config) -> None:
    cfg.objective, cfg.model.num_classes = MaeConfig(), 0
    cfg.data.transform = TransformConfig(crop=Crop.RESIZE)


def _evaluation(cfg: Config) -> None:
    cfg.evals = {"val": ClassifyEval(transform=NATIVE)}


def test_what_has_no_rule_is_refused(subtests: pytest.Subtests) -> None:
    for name, (change, text) in BAD.items():
        with subtests.test(name):
            cfg = config()
            change(cfg)
            with pytest.raises(UserError, match=text):
                config_lib.check(cfg)
    cfg = config(pack=8)
    cfg.model.dtype, cfg.model.attention = models.DType.BFLOAT16, AttentionImpl.CUDNN
    with refused_by("config.native._check_packed", "data.pack"):
        config_lib.check(cfg)
