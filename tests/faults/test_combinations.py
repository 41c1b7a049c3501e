# SPDX-License-Identifier: Apache-2.0
"""Drawn combinations of options continue to the bit after a fault, and agree on four devices.

COMBINATIONS=60 checks as many, and so does `python -m tests.faults.combinations --count=60`.
"""

import dataclasses
import os
from pathlib import Path

import pytest

from tests.faults.combinations import check, draw, prepare
from vit_jax.optim import Optimizer
from vit_jax.settings.fields import flatten, plain

MORE = os.environ.get("COMBINATIONS")
# Told to stop, with LoRA, an average, micro-batches and a worker; a run that is killed is
# tests/smoke/test_runs.py's.
CHOSEN = (20,)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("combinations")
    prepare(place)
    return place


def test_draws_reach_every_option(scratch: Path) -> None:
    seen: dict[str, set[object]] = {}
    for number in range(60):
        drawn = draw(number, scratch)
        assert draw(number, scratch) == drawn  # a failure is found again
        for name, value in flatten(plain(drawn.cfg)).items():
            seen.setdefault(name, set()).add(str(value))
    families = {"ViTConfig", "SwinConfig", "MixerConfig", "CaiTConfig", "ConViTConfig"}
    families |= {"RegNetConfig", "ResNetConfig", "BiTConfig", "HybridConfig", "ConvNeXtConfig"}
    families |= {"HieraConfig"}
    assert families <= seen["model.family"]
    kinds = {"Supervised", "Distill", "Mae", "MaskedPatch", "Dino"}
    assert {f"{kind}Config" for kind in kinds} <= seen["objective.family"]
    assert len(seen["optim.name"]) == len(Optimizer)
    assert len({name.partition(":")[0] for name in seen["data.name"]}) == 5
    several = (
        "accum_steps ema_decay data.repeats data.balance data.cache data.num_threads "
        "data.num_workers data.mix.mixup_alpha data.erasing_prob data.transform.auto_augment "
        "lora.pattern optim.freeze model.dtype model.remat model.scan_unroll model.drawn_patches "
        "optim.sam_rho checkpoint.every model.num_registers model.token_merging init.weights"
    )
    for name in several.split():
        assert len(seen[name]) > 1, name


@pytest.mark.slow
@pytest.mark.parametrize("number", range(int(MORE)) if MORE else CHOSEN)
def test_continued_and_on_four_devices(number: int, scratch: Path) -> None:
    check(number, scratch)


def test_a_difference_is_found(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.faults import combinations

    ends = iter([({"a": 1}, []), ({"a": 2}, [])])
    monkeypatch.setattr(combinations, "_fit", lambda cfg, place, devices: next(statuses))
    monkeypatch.setattr(combinations, "_end", lambda place: next(ends))
    drawn = dataclasses.replace(draw(0, scratch), fault=combinations.signal.SIGTERM)
    monkeypatch.setattr(combinations, "draw", lambda number, place: drawn)
    statuses = iter([0, combinations.INTERRUPTED, 0])
    with pytest.raises(AssertionError, match=r"other state: \['a'\]"):
        check(0, scratch)
