# SPDX-License-Identifier: Apache-2.0
"""Cached logits: what the teacher says, by position; a run learns the same from them."""

import dataclasses
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.unit.train import teachers
from tests.unit.train.distilled_digits import TEACHER
from tests.unit.train.test_logit_cache import config
from vit_jax import objectives
from vit_jax.cli import cache_teacher
from vit_jax.config.tree import Config
from vit_jax.data import Source
from vit_jax.devices import sharding
from vit_jax.distill import Distillation, LogitCache, Stream, teacher
from vit_jax.distill import cache as cache_lib
from vit_jax.distill.cache import INDEX, LOGITS, REST, TOP
from vit_jax.errors import UserError
from vit_jax.process.preemption import Preemption
from vit_jax.train import build as build_lib
from vit_jax.train import write_logits as write
from vit_jax.train.batches import device_batches
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

CONFIG = Path(__file__).parents[2] / "unit" / "train" / "distilled_digits.py"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    return teachers.save(tmp_path_factory.mktemp("teacher"), TEACHER)


@pytest.fixture(scope="module")
def full(weights: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cache") / "full"
    write.write(config(weights), place)
    return place


@pytest.fixture(scope="module")
def top(weights: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("cache") / "top"
    write.write(config(weights), place, top_k=3)
    return place


def opened(cfg: Config, source: Source, positions: int) -> objectives.Extras:
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    return objective.open(source, cfg.seed, positions, {})


def live_logits(cfg: Config, step: int) -> np.ndarray:
    mesh = sharding.make_mesh(cfg.mesh)
    source = build_lib.open_train(cfg)
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    batches = device_batches(cfg.data, objective, source, mesh, seed=cfg.seed, start=step)
    variables, _ = teacher.read_weights(cfg.objective.distill)
    stream = Stream(cfg.objective.distill, cfg.model, cfg.data, cfg.seed, source)
    return np.asarray(jax.jit(teacher.make_predict(stream))(variables, next(batches)["image"]))


def test_rows_are_what_the_teacher_says(weights: str, full: Path, top: Path) -> None:
    cache, few = cache_lib.read(full), cache_lib.read(top)
    assert cache.done == few.done == 96
    assert (full / f"{LOGITS}.bin").stat().st_size == 96 * 10 * 2
    for step in (0, 5):
        live = live_logits(config(weights), step)
        assert np.std(live, axis=0).min() > 0.1
        at = np.arange(16 * step, 16 * step + 16)
        rows = cache.rows(at)[LOGITS]
        np.testing.assert_allclose(rows, live, rtol=2**-10, atol=1e-5)
        kept = few.rows(at)
        order = np.argsort(-live, axis=1)
        np.testing.assert_array_equal(kept[INDEX], order[:, :3])
        best = np.take_along_axis(live, order[:, :3], axis=1)
        np.testing.assert_allclose(kept[TOP], best, rtol=2**-10, atol=1e-5)
        others = np.take_along_axis(live, order[:, 3:], axis=1)
        rest = 2 * np.log(np.exp(others / 2).mean(axis=1))
        np.testing.assert_allclose(kept[REST], rest, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_cached_run_has_the_losses_of_the_live_one(
    weights: str, full: Path, top: Path, tmp_path: Path
) -> None:
    rows = {}
    for name, cache in (("live", ""), ("full", full), ("top", top)):
        fit(config(weights, cache), tmp_path / name)
        logged = read_jsonl(tmp_path / name / "metrics.jsonl")
        rows[name] = [row for row in logged if "train/loss" in row]
        assert len(rows[name]) == 6
    for key in ("train/loss", "train/distill_loss", "train/teacher_top1"):
        live, same, near = ([row[key] for row in rows[n]] for n in ("live", "full", "top"))
        assert same == pytest.approx(live, rel=2e-3), key
        if key == "train/distill_loss":
            assert near != pytest.approx(live, rel=2e-3)
            assert near == pytest.approx(live, rel=0.5)


def noted(cache: LogitCache, *stops: int) -> LogitCache:
    """Note what is on the disk anew, up to each of `stops`."""
    cache = dataclasses.replace(cache, pieces=())
    for stop in stops:
        cache = cache.finish(stop)
    return cache


def test_a_killed_writing_goes_on(weights: str, full: Path, tmp_path: Path, capsys: Any) -> None:
    place = tmp_path / "part"
    shutil.copytree(full, place)
    data = bytearray((place / f"{LOGITS}.bin").read_bytes())
    whole = bytes(data)
    # Killed in the fourth batch: of what was noted, 40 positions, nothing is written again.
    data[39 * 20] ^= 1  # the last bit of a logit
    (place / f"{LOGITS}.bin").write_bytes(data)
    noted(cache_lib.read(place), 24, 40)
    data[40 * 20 :] = b"\x7f" * len(data[40 * 20 :])
    (place / f"{LOGITS}.bin").write_bytes(data[: 70 * 20])
    command = f"cache_teacher --config=FILE --out={place}$"
    with pytest.raises(UserError, match=f"holds 40 of the 96 positions.*{command}"):
        fit(config(weights, place), tmp_path / "run")
    capsys.readouterr()
    assert write.write(config(weights), place) == 0
    assert "\ncontinuing at position 40\n" in capsys.readouterr().out
    data[40 * 20 :] = whole[40 * 20 :]
    assert (place / f"{LOGITS}.bin").read_bytes() == data
    assert cache_lib.read(place).done == 96
    # A longer run of the same stream goes on where the shorter one ended.
    longer = config(weights)
    longer.duration = "7 steps"
    write.write(longer, place)
    data = (place / f"{LOGITS}.bin").read_bytes()
    assert data[40 * 20 : len(whole)] == whole[40 * 20 :]
    cache_lib.read(place).check_rows(112)
    rows = cache_lib.read(place).rows(np.arange(96, 112))[LOGITS]
    np.testing.assert_allclose(rows, live_logits(config(weights), 6), rtol=2**-10, atol=1e-5)


def refused(match: str, cfg: Config, place: Path) -> None:
    with pytest.raises(UserError, match=match) as error:
        fit(cfg, place / "run")
    assert "\n" not in str(error.value)


def test_another_stream_or_teacher_is_refused(weights: str, full: Path, tmp_path: Path) -> None:
    refused(r"another stream.*seed is 1, 0 there", config(weights, full, seed=1), tmp_path)
    cfg = config(weights, full)
    cfg.data.transform.degrees = 5.0
    refused(r"data\.transform\.degrees is 5\.0, 15\.0 there", cfg, tmp_path)
    cfg = config(weights, full)
    cfg.data.train_split = "train[:48]"
    refused(r"train_split.*the number of training examples is 48, 64 there", cfg, tmp_path)
    cfg = config(weights, full)
    cfg.objective.distill.std = (0.25,)
    refused(r"distill\.std is \[0\.25\], \[0\.5\] there", cfg, tmp_path)
    cfg.objective.distill.std = (0.5,)  # as the student's
    cfg.objective.distill.weights = teachers.save(tmp_path / "other", TEACHER, seed=1)
    refused("the digest of objective.distill.weights", cfg, tmp_path)
    refused("holds no cached logits", config(weights, tmp_path / "nothing"), tmp_path)
    with pytest.raises(UserError, match="begun with --top_k=0"):
        write.write(config(weights), full, top_k=2)
    # What leaves the stream as it is may differ; without weights the record is believed.
    cfg = config("", full)
    cfg.data.batch_size, cfg.data.num_threads, cfg.duration = 8, 2, "12 steps"
    source = build_lib.open_train(cfg)
    assert opened(cfg, source, 96).rows is not None
    with pytest.raises(UserError, match="holds 96 of the 97 positions"):
        opened(cfg, source, 97)


def test_the_largest_are_for_one_temperature(weights: str, full: Path, top: Path) -> None:
    source = build_lib.open_train(config(weights))
    for place in (full, top):
        assert opened(config(weights, place), source, 96).rows is not None
    cfg = config(weights, full)
    cfg.objective.distill.temperature = 3.0
    assert opened(cfg, source, 96).rows is not None
    cfg.objective.distill.cache = str(top)
    with pytest.raises(UserError, match=r"--top_k=3 .*temperature 2, not .*temperature=3;"):
        opened(cfg, source, 96)
    with pytest.raises(UserError, match=r"temperature 2, not .*temperature=3;"):
        write.write(cfg, top, top_k=3)
    # The first guess is that at any.
    cfg.objective.distill.kind, cfg.objective.distill.temperature = Distillation.HARD, 1.0
    assert opened(cfg, source, 96).rows is not None
    with pytest.raises(UserError, match=f"cache_teacher --config=FILE --out={top} --top_k=3$"):
        opened(cfg, source, 97)


@pytest.mark.parametrize("name", ["full", "top"])
def test_rows_that_the_teacher_never_said_are_noticed(
    name: str, weights: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    shutil.copytree(request.getfixturevalue(name), tmp_path / "cache")
    cfg = config(weights, tmp_path / "cache")
    source = build_lib.open_train(cfg)
    opened(cfg, source, 96)
    cache = cache_lib.read(tmp_path / "cache")
    rows = cache.rows(np.arange(90, 96))
    key = LOGITS if name == "full" else REST
    cache.write(90, {**rows, key: rows[key] + rows[key].dtype.type(0.1)})
    noted(cache, 96)
    with pytest.raises(UserError, match="holds other logits than the teacher's: at position 9"):
        opened(cfg, source, 96)
    cfg.objective.distill.weights = "ckpt:gone"
    assert opened(cfg, source, 96).digest == cache.weights


@pytest.mark.parametrize("key", [TOP, INDEX, REST])
def test_one_bit_anywhere_is_noticed(
    key: str, weights: str, top: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_lib, "_BLOCK", 100)
    shutil.copytree(top, tmp_path / "cache")
    cfg = config("ckpt:gone", tmp_path / "cache")
    source = build_lib.open_train(cfg)
    noted(cache_lib.read(tmp_path / "cache"), 32, 64, 96)
    opened(cfg, source, 96)
    file = tmp_path / "cache" / f"{key}.bin"
    data = bytearray(file.read_bytes())
    data[len(data) * 33 // 96] ^= 1  # in the first of two blocks
    file.write_bytes(data)
    match = f"{key}.bin is damaged somewhere in positions 32 to 63; write another cache"
    with pytest.raises(UserError, match=match):
        opened(cfg, source, 96)
    with pytest.raises(UserError, match=match):
        write.write(config(weights), tmp_path / "cache", top_k=3)
    assert opened(cfg, source, 32).rows is not None  # a run that does not need it


def test_another_batch_size_leaves_noted_rows(weights: str, full: Path, tmp_path: Path) -> None:
    shutil.copytree(full, tmp_path / "cache")
    cache = noted(cache_lib.read(tmp_path / "cache"), 40)
    rows = cache.rows(np.arange(32, 40))
    cache.write(32, {LOGITS: rows[LOGITS] * np.float16(1.001)})  # rounded otherwise
    noted(cache, 40)
    before = (tmp_path / "cache" / f"{LOGITS}.bin").read_bytes()
    assert write.write(config(weights), tmp_path / "cache") == 0
    assert (tmp_path / "cache" / f"{LOGITS}.bin").read_bytes() == before
    cache_lib.read(tmp_path / "cache").check_rows(96)


def test_told_to_stop(weights: str, full: Path, tmp_path: Path, capsys: Any) -> None:
    class Told(Preemption):
        """Get a real SIGTERM after the third batch."""

        def requested(self, step: int) -> bool:
            if step == 3:
                signal.raise_signal(signal.SIGTERM)
            return super().requested(step)

    place = tmp_path / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "Preemption", Told)
        assert write.write(config(weights), place) == 75
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == "stopped by SIGTERM: wrote 48 of 96 positions; the same command continues"
    assert cache_lib.read(place).done == 48
    assert write.write(config(weights), place) == 0
    assert "\ncontinuing at position 48\n" in capsys.readouterr().out
    name = f"{LOGITS}.bin"
    assert (place / name).read_bytes() == (full / name).read_bytes()


def test_a_run_and_a_cache_are_not_in_one_directory(
    weights: str, full: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=f"^workdir {full} holds cached logits; choose another$"):
        fit(config(weights), full)
    for name in ("checkpoints", "config.json"):
        (tmp_path / name).mkdir()
        with pytest.raises(UserError, match=r"is the workdir of a run; choose another$"):
            write.write(config(weights), tmp_path)
        (tmp_path / name).rmdir()
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=f"^cannot write to --out {tmp_path}/file: File exists$"):
        write.write(config(weights), tmp_path / "file")


def test_the_command(weights: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: str) -> tuple[int, str, str]:
        argv = [f"--config={CONFIG}", f"--config.objective.distill.weights={weights}", *args]
        status = cache_teacher.main(["vit_jax cache_teacher", *argv])
        return status, *capsys.readouterr()

    plain = ["--config.data.mix.mixup_alpha=0", "--config.data.mix.cutmix_alpha=0"]
    plain += ["--config.data.mix.partner=previous", "--config.data.erasing_prob=0"]
    plain += ["--config.duration=2 steps", "--config.mesh.data=1"]
    plain += ["--config.objective.distill.teacher.image_size=24"]
    out = f"--out={tmp_path / 'cache'}"
    assert run(*plain)[0] == 2
    status, _, error = run(out)
    assert (status, error.count("\n")) == (2, 1)
    assert error.endswith(
        "not mixed and not erased: set data.mix.mixup_alpha=0 and data.mix.cutmix_alpha=0 and "
        "data.erasing_prob=0\n"
    )
    for top_k in (-1, 10):
        assert f"--top_k={top_k} must be 1 to 9 (or" in run(out, *plain, f"--top_k={top_k}")[2]
    assert not (tmp_path / "cache").exists()
    status, said, error = run(out, *plain, "--top_k=2")
    assert (status, error) == (0, "")
    lines = said.splitlines()
    assert lines[0].startswith("digits: 10 classes in 2 splits (train 1,437, test 360)")
    assert lines[1].startswith("32 images, 12 bytes each: 384 B in ")
    assert lines[-1].endswith(f"--config.objective.distill.cache={tmp_path / 'cache'}")
    record = json.loads((tmp_path / "cache" / cache_lib.RECORD).read_text())
    assert record["stream"]["objective.distill.teacher.image_size"] == [24]
    # All is there: nothing is written again.
    before = (tmp_path / "cache" / cache_lib.RECORD).stat().st_mtime_ns
    assert run(out, *plain, "--top_k=2")[0] == 0
    assert (tmp_path / "cache" / cache_lib.RECORD).stat().st_mtime_ns == before
