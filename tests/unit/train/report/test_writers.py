# SPDX-License-Identifier: Apache-2.0
import contextlib
import json
import os
import sqlite3
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from vit_jax.config.tree import LogConfig
from vit_jax.errors import UserError
from vit_jax.train.report import writers


def test_jsonl_lines_are_strict_json_and_there_at_once(tmp_path):
    path = tmp_path / "m.jsonl"
    writer = writers.JsonlWriter(path)
    writer.write(1, {"train/loss": np.float32(0.5), "val/top1": jax.numpy.float32(0.25)})
    writer.write(2, {"train/loss": float("nan"), "train/lr": float("inf")})

    def refuse(name):
        raise AssertionError(name)

    lines = [json.loads(x, parse_constant=refuse) for x in path.read_text().splitlines()]
    assert lines == [
        {"step": 1, "train/loss": 0.5, "val/top1": 0.25},
        {"step": 2, "train/loss": None, "train/lr": None},
    ]
    writer.close()


def test_what_is_known_of_the_step_resumed_from_is_not_written_again(tmp_path):
    path = tmp_path / "m.jsonl"
    for scalars in ({"val/top1": 0.5}, {"val/top1": 0.5}, {"val/top1": 0.5, "val/top5": 0.9}):
        writer = writers.JsonlWriter(path, step=5)
        writer.write(5, scalars)
        writer.close()
    assert writers.read_jsonl(path) == [{"step": 5, "val/top1": 0.5}, {"step": 5, "val/top5": 0.9}]


def test_torn_last_line_of_a_kept_step_is_repaired(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "train/loss": 1.0}\n{"step": 2, "trai')
    writer = writers.JsonlWriter(path, step=5)
    writer.write(6, {"train/loss": 2.0})
    writer.close()
    assert path.read_text() == ('{"step": 1, "train/loss": 1.0}\n{"step": 6, "train/loss": 2.0}\n')


def test_dropping_lines_is_atomic(tmp_path, monkeypatch):
    """Dying just before the rename leaves the old file whole."""
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1}\n{"step": 2}\n')
    before = path.read_text()

    def die(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        writers.JsonlWriter(path, step=1)
    assert path.read_text() == before


def test_read_jsonl_of_rubbish(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'\xff\xfe\n[1]\n7\n{"a": 1}\n{"step": "x"}\n{"step": 4}\n')
    assert writers.read_jsonl(path) == [{"step": 4}]
    assert writers.read_jsonl(tmp_path / "none") == []


def test_tensorboard_can_be_off(tmp_path):
    writers.make_writer(LogConfig(tensorboard=False), tmp_path).close()
    assert os.listdir(tmp_path) == ["metrics.jsonl"]


def test_other_processes_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    writer = writers.make_writer(LogConfig(wandb_project="p"), tmp_path)
    writer.write(1, {"train/loss": 1.0})
    writer.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("package", ["wandb", "trackio"])
def test_a_missing_package_is_one_line(tmp_path, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        UserError, match=f"log.{package}_project='vit'.*install {package}"
    ) as caught:
        writers.make_writer(LogConfig(**{f"{package}_project": "vit"}), tmp_path)
    assert "\n" not in str(caught.value)
    assert os.listdir(tmp_path) == []


class Trackio:
    """As trackio: what it was asked for, in order."""

    def __init__(self):
        self.asked = []

    def init(self, **given):
        self.asked.append((given["project"], given["name"], given["resume"], given["config"]))
        return self

    def log(self, metrics, step=None):
        self.asked.append((step, metrics))

    def finish(self):
        self.asked.append("finish")


def test_trackio_has_each_step_of_a_workdir_once(tmp_path, monkeypatch):
    there = Trackio()
    monkeypatch.setitem(sys.modules, "trackio", there)
    cfg = LogConfig(tensorboard=False, trackio_project="vit")
    for step in (0, 2):  # continued at 2, though lines were written up to 4
        writer = writers.make_writer(cfg, tmp_path, step=step, run_config={"seed": 1})
        for now in range(step + 1, step + 5):
            writer.write(now, {"train/loss": np.float32(now)})
        writer.close()
    first, second = (each for each in there.asked if len(each) == 4)
    assert first == second == ("vit", first[1], "allow", {"seed": 1})
    assert first[1].startswith(f"{tmp_path.name}-")
    sent = [each for each in there.asked if len(each) == 2]
    assert sent == [(now, {"train/loss": float(now)}) for now in range(1, 7)]
    assert there.asked[-1] == "finish"


def test_trackio_itself_takes_what_is_sent(tmp_path, monkeypatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # read when it is imported
    pytest.importorskip("trackio", reason="optional; pip install trackio")
    for sent in (0, 2):
        writer = writers.TrackioWriter("vit", tmp_path / "run", run_config={"a": 1}, sent=sent)
        for step in (1, 2) if not sent else (2, 3):
            writer.write(step, {"train/loss": 1.0})
        writer.close()
    with contextlib.closing(sqlite3.connect(next((tmp_path / "trackio").glob("*.db")))) as base:
        assert [row[0] for row in base.execute("SELECT step FROM metrics ORDER BY id")] == [1, 2, 3]


def test_wandb_continues_one_run_per_workdir(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="optional; pip install wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    ids = []
    for step in (0, 3):
        writer = writers.WandbWriter("vit", tmp_path, run_config={"seed": 1})
        writer.write(step + 1, {"train/loss": 1.0})
        ids.append(writer._run.id)
        writer.close()
    assert ids[0] == ids[1]


def test_a_process_that_only_ends_a_run_leaves_its_own_times(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for wall in (9.0, 2.0):  # killed after its last line, then started again at that step
        writer = writers.JsonlWriter(path, step=0 if wall == 9.0 else 5)
        writer.write(5, {"test/loss": 1.0})
        writer.write(5, {"perf/wall_seconds": wall})
        writer.close()
    rows = [{"step": 5, "test/loss": 1.0}]
    assert writers.read_jsonl(path) == rows + [
        {"step": 5, "perf/wall_seconds": w} for w in (9.0, 2.0)
    ]
