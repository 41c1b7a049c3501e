# SPDX-License-Identifier: Apache-2.0
"""Cached logits: what the teacher says, by position; a run learns the same from them."""

import dataclasses
import json
import math
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jax.sharding import Mesh

from tests.refusals import refused_by
from tests.unit.train import teachers
from tests.unit.train.distilled_digits import TEACHER, get_config
from vit_jax import objectives
from vit_jax.config.tree import Config
from vit_jax.data import MixConfig, Source
from vit_jax.devices import sharding
from vit_jax.distill import Distillation, LogitCache
from vit_jax.distill import cache as cache_lib
from vit_jax.distill.cache import LOGITS
from vit_jax.errors import UserError
from vit_jax.train import build as build_lib
from vit_jax.train import write_logits as write
from vit_jax.train.batches import device_batches


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return teachers.save(tmp_path_factory.mktemp("teacher"), TEACHER)


def config(weights: str, cache: str | Path = "", **fields: Any) -> Config:
    cfg = dataclasses.replace(get_config(), duration="6 steps", evals={}, **fields)
    cfg.objective.distill = dataclasses.replace(
        cfg.objective.distill,
        kind=Distillation.KL,
        temperature=2.0,
        weights=weights,
        cache=str(cache),
    )
    cfg.data.mix, cfg.data.erasing_prob = MixConfig(), 0.0
    cfg.optim.warmup, cfg.mesh.data = "1 steps", 1
    return cfg


@pytest.fixture(scope="module")
def full(weights: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cache") / "full"
    write.write(config(weights), place)
    return place


def batches_of(cfg: Config, source: Source, mesh: Mesh, cache: LogitCache) -> Any:
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    where = {"seed": cfg.seed, "start": 2, "rows": cache.rows}
    return device_batches(cfg.data, objective, source, mesh, **where)


def test_damage_is_noticed(full: Path, tmp_path: Path) -> None:
    shutil.copytree(full, tmp_path / "cut")
    (tmp_path / "cut" / f"{LOGITS}.bin").write_bytes(b"")
    with pytest.raises(UserError, match="missing or cut"):
        cache_lib.read(tmp_path / "cut")
    (tmp_path / "cut" / cache_lib.RECORD).write_text("{")
    with refused_by("storage.foreign.tree"):
        cache_lib.read(tmp_path / "cut")


def test_a_description_of_another_kind_is_refused(tmp_path: Path) -> None:
    cache = LogitCache(tmp_path, {cache_lib.WEIGHTS: "0"}, 0, 3, class_names=["a", "b", "c"])
    cache.reserve(4)
    cache.write(0, {LOGITS: np.ones((4, 3), np.float16)})
    cache.finish(4)
    record = tmp_path / cache_lib.RECORD
    good = json.loads(record.read_text())
    assert cache_lib.read(tmp_path).class_names == ["a", "b", "c"]
    cases: dict[str, list[Any]] = {
        "stream": [3, {}, {cache_lib.WEIGHTS: 3}],
        "top_k": ["x", 10**9, 1.5, True, 3, -1],
        "num_classes": [2**62, 3.0, "3", True, 0],
        "temperature": [0, "x", math.nan, None],
        "pieces": [{}, 3, [{"stop": 4}], [{"stop": 4.0, LOGITS: 0}], [{"stop": "4", LOGITS: 0}]],
        "class_names": [3, [1, 2, 3], ["a"], "abc"],
        "another": [1],
    }
    cases["pieces"] += [[{"stop": n, LOGITS: 0}, {"stop": 4, LOGITS: 0}] for n in (-5, 9)]
    for key, values in cases.items():
        for value in values:
            record.write_text(json.dumps({**good, key: value}))
            with pytest.raises(UserError, match="does not describe cached logits"):
                cache_lib.read(tmp_path)


def test_a_full_disk_is_one_line(tmp_path: Path) -> None:
    cache = LogitCache(tmp_path, {}, 0, 10)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        cache.reserve(100)
        with pytest.raises(UserError, match=r"cannot write to .*: File too large"):
            cache.reserve(101)
        with pytest.raises(UserError, match=r"cannot write to .*: File too large"):
            cache.write(100, {LOGITS: np.zeros((16, 10), np.float16)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    with pytest.raises(UserError, match="not finite in float16"):
        cache.write(0, {LOGITS: np.full((1, 10), np.inf, np.float16)})


def test_every_process_reads_its_own_rows(
    weights: str, full: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = config(weights, full)
    mesh, source = sharding.make_mesh(cfg.mesh), build_lib.open_train(cfg)
    cache = cache_lib.read(full)
    whole = next(batches_of(cfg, source, mesh, cache))
    np.testing.assert_array_equal(whole[LOGITS], cache.rows(np.arange(32, 48))[LOGITS])
    own = np.array([0, 1, 6, 7, 8, 15])  # in several runs, as a host's chips lie in a torus
    monkeypatch.setattr(sharding, "batch_rows", lambda mesh, batch_size: own)
    monkeypatch.setattr(sharding, "global_batch", lambda batch, mesh, batch_size: batch)
    part = next(batches_of(cfg, source, mesh, cache))
    assert set(part) == set(whole)
    for key, value in part.items():
        np.testing.assert_array_equal(value, np.asarray(whole[key])[own])
