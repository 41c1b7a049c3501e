# SPDX-License-Identifier: Apache-2.0
"""Distilled runs: on any layout, continued, checked before they start; a dry run of them."""

import dataclasses
from typing import Any

from tests.unit.models.tiny import TINY
from tests.unit.train.distilled_digits import TEACHER, get_config
from vit_jax import models
from vit_jax.config import saved as config_json
from vit_jax.objectives import SupervisedConfig


def test_a_teacher_is_written_down_and_compared() -> None:
    cfg = get_config()
    tree = config_json.to_json(cfg)
    teacher = tree["objective"]["distill"]["teacher"]
    assert models.from_json(teacher) == TEACHER
    assert config_json.changes(tree, tree) == []

    def changed(**distill: Any) -> list[str]:
        other = get_config()
        other.objective.distill = dataclasses.replace(other.objective.distill, **distill)
        return config_json.changes(tree, config_json.to_json(other))

    assert changed(weights="ckpt:elsewhere") == []
    assert changed(alpha=0.1) == ["objective.distill.alpha: 0.5 -> 0.1"]
    wider = dataclasses.replace(TEACHER, stem_width=16, scan_unroll=3)
    assert changed(teacher=wider) == ["objective.distill.teacher.stem_width: 8 -> 16"]
    # A field that an older version did not have was at its default.
    del teacher["se_ratio"], tree["objective"]["distill"]["temperature"]
    assert changed() == []
    assert changed(temperature=2.0) == ["objective.distill.temperature: 1.0 -> 2.0"]

    # Of the teacher's own family, whichever that is.
    vit = dataclasses.replace(TINY["vit"], num_classes=10, channels=1)
    other = get_config()
    other.objective.distill = dataclasses.replace(other.objective.distill, teacher=vit)
    before, after = config_json.to_json(other), config_json.to_json(other)
    del before["objective"]["distill"]["teacher"]["pool_prefix"]
    assert config_json.changes(before, after) == []

    plain = get_config()
    plain.objective = SupervisedConfig(label_smoothing=0.1)
    without, full = config_json.to_json(plain), config_json.to_json(get_config())
    assert without["objective"]["family"] == "SupervisedConfig"
    assert config_json.changes(without, full) == [
        "objective.family: 'SupervisedConfig' -> 'DistillConfig'"
    ]
    # As versions before wrote them: one class, with a teacher of kind "none" or without.
    for teacher in ({"distill": {"kind": "none"}}, {}):
        rest = {key: value for key, value in without["objective"].items() if key != "family"}
        before = {**without, "objective": {**rest, **teacher}}
        assert config_json.changes(before, without) == []
        assert config_json.from_json(before) == plain
    rest = {key: value for key, value in full["objective"].items() if key != "family"}
    assert config_json.changes({**full, "objective": rest}, full) == []
    assert config_json.from_json({**full, "objective": rest}) == get_config()
