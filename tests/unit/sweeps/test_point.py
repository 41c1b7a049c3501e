# SPDX-License-Identifier: Apache-2.0
import dataclasses
from pathlib import Path

import pytest

from configs import vit_mu_digits
from tests.unit.sweeps import files
from vit_jax.cli.parsing import flags
from vit_jax.errors import UserError
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps.point import Point

POINT = Point(
    run="0123",
    name="lr=0.1",
    config="configs/vit_mu_digits.py",
    overrides={"optim.lr": 0.1, "model.image_size": (16, 32), "data.cache": False},
    metric="val/loss",
    params=10,
    flops=2e9,
    examples=100,
    tokens=None,
    steps=5,
    seconds=(1.5, 2.5),
)


def test_a_point_makes_the_config_that_its_flags_say() -> None:
    assert POINT.arguments() == [
        "--config=configs/vit_mu_digits.py",
        "--config.optim.lr=0.1",
        "--config.model.image_size=(16, 32)",
        "--config.data.cache=false",
    ]
    made = dataclasses.replace(POINT, config=str(files.ROOT / POINT.config))
    cfg = flags.read_config(["main.py", *made.arguments()])
    assert (cfg.optim.lr, cfg.model.image_size, cfg.data.cache) == (0.1, (16, 32), False)


def test_a_manifest_reads_back_and_makes_the_same_flags(tmp_path: Path) -> None:
    point_lib.write_manifest(tmp_path, [POINT])
    (read,) = point_lib.read_manifest(tmp_path)
    assert read.arguments() == POINT.arguments()
    assert dataclasses.replace(read, overrides=POINT.overrides) == POINT


def test_a_manifest_of_one_time_reads_as_a_range(tmp_path: Path) -> None:
    line = point_lib.to_line(POINT).replace("[1.5, 2.5]", "1.5")
    (tmp_path / "manifest.jsonl").write_text(f"{line}\n")
    assert point_lib.read_manifest(tmp_path)[0].seconds == (1.5, 1.5)
    unpriced = dataclasses.replace(POINT, seconds=None)
    point_lib.write_manifest(tmp_path, [unpriced])
    assert point_lib.read_manifest(tmp_path)[0].seconds is None


@pytest.mark.parametrize("kept", [1, 30, -1])
def test_a_torn_last_line_is_left_out_and_replaced(
    kept: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = point_lib.to_line(dataclasses.replace(POINT, run="4567", name="a name of two bytes: é"))
    manifest = tmp_path / "manifest.jsonl"
    manifest.write_text(f"{point_lib.to_line(POINT)}\n{line[:kept]}")
    assert [point.run for point in point_lib.read_manifest(tmp_path)] == ["0123"]
    (told,) = capsys.readouterr().err.splitlines()
    assert told == f"warning: {manifest}, line 2, is torn: left out, 1 are read"
    for _ in range(2):
        point_lib.add_to_manifest(tmp_path, dataclasses.replace(POINT, run="89ab"))
    assert [point.run for point in point_lib.read_manifest(tmp_path)] == ["0123", "89ab"]
    assert capsys.readouterr().err == ""


def test_a_whole_last_line_without_its_end_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.jsonl").write_text(point_lib.to_line(POINT))
    assert [point.run for point in point_lib.read_manifest(tmp_path)] == ["0123"]
    point_lib.add_to_manifest(tmp_path, dataclasses.replace(POINT, run="89ab"))
    assert [point.run for point in point_lib.read_manifest(tmp_path)] == ["0123", "89ab"]
    assert capsys.readouterr().err == ""


def test_a_manifest_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"holds no manifest\.jsonl.*sweep run FILE"):
        point_lib.read_manifest(tmp_path)
    (tmp_path / "manifest.jsonl").write_text(f'{point_lib.to_line(POINT)}\n{{"run": "a"}}\n')
    with pytest.raises(UserError, match=r"manifest\.jsonl, line 2, is no point"):
        point_lib.read_manifest(tmp_path)


def test_a_search_adds_each_point_once(tmp_path: Path) -> None:
    other = dataclasses.replace(POINT, run="4567")
    for each in (POINT, other, POINT):
        point_lib.add_to_manifest(tmp_path, each)
    assert [each.run for each in point_lib.read_manifest(tmp_path)] == ["0123", "4567"]


def test_the_hash_is_of_what_is_computed_and_measured() -> None:
    first = point_lib.run_hash(vit_mu_digits.get_config())
    assert first == point_lib.run_hash(vit_mu_digits.get_config())

    def changed(**fields: object) -> str:
        cfg = vit_mu_digits.get_config()
        for path, value in fields.items():
            node = cfg
            *parents, last = path.split("__")
            for name in parents:
                node = node[name] if isinstance(node, dict) else getattr(node, name)
            setattr(node, last, value)
        return point_lib.run_hash(cfg)

    different = [
        changed(optim__lr=0.1),
        changed(duration="1 epochs"),
        changed(seed=1),
        changed(model__dim=32),
        changed(evals__val__split="train[1000:]"),
    ]
    assert len({first, *different}) == 6
    # How it is laid out, logged and kept, and where the data lie, is no other run.
    assert changed(mesh__data=1, log__every="1 steps", checkpoint__keep=9) == first
    assert changed(data__data_dir="/elsewhere", model__scan_unroll=1) == first


def test_a_field_at_its_default_does_not_change_the_hash() -> None:
    # 12 digits of SHA-256 of the fields that differ from a ViT's defaults: a field that a later
    # version adds must not send a sweep's finished runs to other directories.
    from vit_jax.config.tree import Config
    from vit_jax.models import ViTConfig

    assert point_lib.run_hash(Config(model=ViTConfig())) == "9db874e32548"
    assert point_lib.run_hash(Config(model=ViTConfig(dim=64))) != "9db874e32548"


def test_names_say_what_differs() -> None:
    assert point_lib.names(
        [
            {"model.dim": 64, "optim.lr": 0.1, "duration": "5 epochs"},
            {"model.dim": 128, "optim.lr": 0.1, "duration": "5 epochs"},
        ]
    ) == ["dim=64", "dim=128"]
    # Two fields of one last name keep their paths; what a point does not set is not named.
    assert point_lib.names([{"model.dim": 1, "teacher.dim": 2}, {"model.dim": 2}]) == [
        "model.dim=1 teacher.dim=2",
        "model.dim=2",
    ]
    assert point_lib.names([{"optim.lr": 0.1}]) == ["lr=0.1"]
    assert point_lib.names([{}]) == ["base"]
