# SPDX-License-Identifier: Apache-2.0
"""A run says what its data are before step 1, keeps it, and goes on as it was begun."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.faults.broken_files import png_bomb
from tests.photos import write_images
from vit_jax.cli.evaluate import main as evaluate
from vit_jax.cli.train import main
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.train.report.writers import read_jsonl

TINY = (
    *("--config=finetune_folder", "--config.model=vit_mu16", "--config.model.image_size=8"),
    *("--config.model.patch=4", "--config.model.dim=8", "--config.model.depth=1"),
    *("--config.model.num_heads=1", "--config.model.mlp_dim=8", "--config.log.tensorboard=false"),
    *("--config.data.transform=resize", "--config.duration=4 steps"),
    "--config.mesh.data=1",
    *(
        "--config.checkpoint.keep=3",
        "--config.checkpoint.every=2 steps",
        "--config.data.num_threads=1",
    ),
)


def train(data: Path, run: Path, *more: str) -> int:
    return main(["vit_jax train", *TINY, f"--config.data.name={data}", f"--workdir={run}", *more])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    write_images(root, *(f"{c}/{i}.png" for c in ("cat", "dog") for i in range(20)))
    write_images(root, "cat/deep/1.png", "dog/new.jfif", "stray.png")
    (root / "dog" / "bomb.png").write_bytes(png_bomb(20_000, 20_000))
    return root


def losses(run: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for row in read_jsonl(run / "metrics.jsonl"):
        values = {k: v for k, v in row.items() if k.startswith(("train/", "val/"))}
        found.setdefault(int(row["step"]), {}).update(values)
    return found


def as_of_before(cfg: Config) -> dict[str, Any]:
    """Write a config as versions without rules did."""
    tree = config_json.plain(cfg)
    del tree["data"]["strict"]
    tree["data"]["name"] = tree["data"]["name"].removesuffix("?rules=1")
    return tree


@pytest.mark.slow
def test_a_run_of_before_goes_on_to_the_bit(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    (data / "dog" / "bomb.png").unlink()  # which would have ended it
    assert train(Path(f"{data}?rules=1"), whole) == 0
    with monkeypatch.context() as patch:
        patch.setattr(config_json, "to_json", as_of_before)
        assert train(Path(f"{data}?rules=1"), run) == 0
    shutil.rmtree(run / "checkpoints" / "4")
    (run / "finished.json").unlink()
    assert "?rules" not in (run / "config.json").read_text()
    capsys.readouterr()
    assert train(data, run) == 0  # the command of then
    out = capsys.readouterr().out
    assert f"data.name=folder:{data}?rules=1 (the run was begun before" in out
    assert "continuing" in out
    assert losses(run) == losses(whole)
    assert "?rules=1" in (run / "config.json").read_text()
    # Its own dataset, evaluated by name, has the images that it had.
    for dataset in ("", f"--dataset={data}", f"--dataset=folder:{data}/"):
        words = [f"--from={run}", "--split=val", *([dataset] if dataset else [])]
        assert evaluate(["vit_jax evaluate", *words]) == 0
        out = capsys.readouterr().out
        assert f"{data}[val]: 4 images" in out
        assert "warning" not in out
    for text, warns in (("dog\ncat\n", True), ("cat\ndog\n", False)):
        (tmp_path / "names.txt").write_text(text)
        words = (f"--from={run}", "--split=val", f"--classes={tmp_path}/names.txt")
        assert evaluate(["vit_jax evaluate", *words]) == 0
        said = f"names.txt calls output 0 'dog', and ckpt:{run} itself 'cat'"
        assert (said in capsys.readouterr().err) == warns
    flat = write_images(tmp_path / "flat", "1.png", "2.png", "3.png")
    assert evaluate(["vit_jax evaluate", f"--from={run}", f"--dataset={flat}", "--split=test"]) == 2
    assert "flat[test] has no labels; put its images in folders" in capsys.readouterr().err
    assert evaluate(["vit_jax evaluate", f"--from={run}", f"--dataset={data}?rules=2"]) == 0
    assert "[test] is of another draw of splits than the run's, and" in capsys.readouterr().out


@pytest.mark.slow
def test_what_is_left_out_is_said_kept_and_compared(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert train(data, run, "--config.data.strict=true") == 2
    err = capsys.readouterr().err
    assert f"error: data.strict: {data}: 2 of 44 files left out: 1 beside the class" in err
    assert not run.exists() or not (run / "checkpoints").exists()
    assert train(data, run) == 0
    out = capsys.readouterr().out
    assert f"{data}: 2 classes in 3 splits (train " in out
    assert out.count("of 44 files left out") == 1
    assert "1 of too many pixels (dog/bomb.png)" in out
    assert out.index("left out") < out.index("step 1/4")
    (data / "notes.txt").touch()  # it changes nothing that is read
    assert train(data, run) == 0
    assert "since it was started, not an image: 0 files left out before, 1" in (
        capsys.readouterr().out
    )
    (data / "cat" / "1.png").write_bytes(b"none")
    assert train(data, run) == 2
    err = capsys.readouterr().err
    assert "was trained on other data" in err
    assert "without an image in it: 0 files left out before, 1 files now" in err.replace(
        "1 now", "1 files now"
    )


def test_without_a_split_to_evaluate_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "data"
    write_images(root, *(f"train/{c}/{i}.png" for c in "ab" for i in range(20)))
    assert train(root, tmp_path / "run") == 2
    err = capsys.readouterr().err
    assert "--config.data.train_split='train[:90%]' --config.evals.val.split='train[90%:]'" in err
    slices = ("--config.data.train_split=train[:90%]", "--config.evals.val.split=train[80%:]")
    dry = ("--dry_run",)
    assert train(root, tmp_path / "run", *slices, *dry) == 0
    out = capsys.readouterr().out
    assert "warning: evals.val: train[80%:] has images of train[:90%], on which the run" in out
    assert "2 classes in 1 split (train 40); all 40 files used" in out
    drawn = write_images(tmp_path / "drawn", *(f"{c}/{i}.png" for c in "ab" for i in range(20)))
    for name, warns in ((f"{drawn}/", False), (f"{drawn}?split_seed=2", True)):
        other = ("--config.evals.other=classify", f"--config.evals.other.dataset={name}")
        assert train(drawn, tmp_path / "run", *other, *dry) == 0
        said = "is of another draw of splits than the run's train" in (capsys.readouterr().out)
        assert said == warns


def test_a_probe_is_left_out_where_a_split_has_no_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    write_images(root, *(f"train/{i}.png" for i in range(12)))
    write_images(root, *(f"val/{c}/{i}.png" for c in "ab" for i in range(4)))
    words = ["vit_jax train", "--config=unlabelled_folder:mae_small", "--dry_run"]
    status = main([*words, f"--config.data.name={root}"])
    told = capsys.readouterr()
    assert status == 0, told.err
    assert f"evals.knn is left out: {root}[train] has no labels\n" in told.out
    assert "evaluations: val every" in told.out


def test_images_alone_do_for_what_reads_no_label(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "data"
    write_images(root, *(f"{i}.png" for i in range(40)))
    assert train(root, tmp_path / "run", "--dry_run") == 2
    err = capsys.readouterr().err
    assert "has no labels; put them in folders of classes, or train without" in err
    words = ["vit_jax train", "--config=mae_imagenet", f"--config.data.name={root}", "--dry_run"]
    words += [
        "--config.data.batch_size=8",
        "--config.data.train_split=whole",
        "--config.evals.knn=none",
    ]
    status = main(words)
    told = capsys.readouterr()
    assert status == 0, told.err
    assert "0 classes in 3 splits" in told.out
