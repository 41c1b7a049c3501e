# SPDX-License-Identifier: Apache-2.0
"""An example that cannot be read ends a run and is named, or is replaced and counted if allowed."""

import itertools
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.faults.broken_files import DAMAGE
from tests.photos import write_folder
from tests.refusals import refused_by
from tests.unit.data.stream.test_pipeline import same
from vit_jax import data, models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.cli.train import main
from vit_jax.config.tree import Config, LogConfig
from vit_jax.data.order import ExampleRng, epoch_order
from vit_jax.data.stream.transform import Transform
from vit_jax.errors import DataError
from vit_jax.train.loop import fit
from vit_jax.train.report.writers import read_jsonl

CLASSES, COUNT, BATCH = ("cat", "dog", "emu"), 24, 4
CROPPED = data.TransformConfig(crop=data.Crop.INCEPTION, flip=True, auto_augment="randaug(2,10)")
FIRST = epoch_order(COUNT, 0, 0).tolist()  # which example is where in the first epoch


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("whole")
    write_folder(root, {"train": COUNT // 3, "val": 2}, CLASSES)
    return root


@pytest.fixture
def root(whole, tmp_path) -> Path:
    shutil.copytree(whole, tmp_path / "photos")
    return tmp_path / "photos"


def damage(source: data.Source, kinds: dict[int, str]) -> None:
    for index, kind in kinds.items():
        DAMAGE[kind][0](Path(source.example_id(index)))


def take(source, count, *, max_broken=0, start_step=0, hosts=(0, 1), **fields):
    cfg = data.DataConfig(batch_size=BATCH, transform=CROPPED, max_broken=max_broken, **fields)
    batches = data.train_batches(
        source,
        cfg,
        views=data.one_view(cfg.transform, (16, 16), 3),
        seed=0,
        start_step=start_step,
        rows=np.split(np.arange(BATCH), hosts[1])[hosts[0]],
    )
    with batches:
        return list(itertools.islice(batches, count))


@pytest.fixture
def four_broken(root):
    """A source, its batches, and how four of its files broke then, three in a row."""
    source = data.open_source(f"folder:{root}")
    intact = take(source, 9)
    kinds = {5: "cut off", 6: "empty", 7: "gone", 23: "bomb"}
    damage(source, kinds)
    return source, intact, kinds


def test_the_next_that_reads_takes_the_place_of_a_broken_image(four_broken):
    source, intact, kinds = four_broken
    instead = {5: 8, 6: 8, 7: 8, 23: 0}
    transform = Transform(cfg=CROPPED, image_size=(16, 16), channels=3, exact=False)
    rng = ExampleRng(0)
    seen = set()
    for step, (before, after) in enumerate(zip(intact, take(source, 9, max_broken=4), strict=True)):
        for row, index in enumerate(before["index"].tolist()):
            if index not in instead:
                for key in before:
                    np.testing.assert_array_equal(before[key][row], after[key][row])
                continue
            seen.add(index)
            other = instead[index]
            example = source.read(other)
            bytes_, label = example["image"], example["label"]
            # Cropped as anything in this place of the stream is.
            expected = transform(bytes_, rng(step * BATCH + row))
            np.testing.assert_array_equal(after["image"][row], expected)
            assert after["label"][row] == label
            assert (after["index"][row], after["broken"][row]) == (other, index)
            reason = after["reason"][row].decode()
            assert re.search(rf"^not a readable image \(.*({DAMAGE[kinds[index]][1]})", reason)
    assert seen == set(instead)


@pytest.mark.slow
def test_neither_threads_workers_hosts_nor_a_new_start_change_what_is_shown(four_broken):
    source, *_ = four_broken
    reference = take(source, 9, max_broken=4, num_threads=1)
    same(take(source, 9, max_broken=4, num_threads=3), reference)
    same(take(source, 5, max_broken=4, start_step=4, num_workers=1), reference[4:])
    shares = [take(source, 9, max_broken=4, hosts=(i, 2)) for i in range(2)]
    joined = [
        {key: np.concatenate([one[key], two[key]]) for key in one}
        for one, two in zip(*shares, strict=True)
    ]
    same(joined, reference)


# A worker process hands its line over, whatever that says.
@pytest.mark.parametrize("kind, num_workers", [*((kind, 0) for kind in DAMAGE), ("cut off", 1)])
def test_none_is_replaced_unless_the_config_says_so(root, kind, num_workers):
    source = data.open_source(f"folder:{root}")
    damage(source, {FIRST[5]: kind})
    with pytest.raises(DataError) as caught:
        take(source, 2, num_workers=num_workers)
    line, name = str(caught.value), source.example_id(FIRST[5])
    assert line.startswith(f"{name}: not a readable image (")
    assert line.endswith(
        "; repair it, or set data.max_broken=N to replace up to N by other examples"
    )
    assert "\n" not in line
    assert caught.value.status == 65


def test_an_image_that_no_step_uses_ends_nothing(root):
    source = data.open_source(f"folder:{root}")
    damage(source, {FIRST[4]: "empty"})  # of the second batch, which is prepared beside the first
    assert len(take(source, 1, prefetch=2)) == 1


def test_more_in_a_row_than_are_allowed_end_the_search(root):
    source = data.open_source(f"folder:{root}")
    damage(source, dict.fromkeys(range(COUNT), "empty"))
    for allowed, tries in ((3, 3), (1000, COUNT - 1)):
        with pytest.raises(DataError, match=f"nor can the {tries} after it be used, and data.max"):
            take(source, 1, max_broken=allowed)


def test_an_evaluation_replaces_nothing(root):
    source = data.open_source(f"folder:{root}", split="val")
    damage(source, {3: "cut off"})
    plain = data.TransformConfig()
    batches = data.eval_batches(source, data.one_view(plain, (16, 16), 3), batch_size=6)
    with batches, pytest.raises(DataError, match=r"\d\.jpg: not a readable image \(.*\)$"):
        next(batches)


def run(root: Path, max_broken: int, **fields) -> Config:
    return Config(
        model=models.variant(
            "vit_mu8",
            image_size=(16, 16),
            num_classes=3,
            dim=16,
            depth=1,
            num_heads=2,
            mlp_dim=32,
        ),
        data=data.DataConfig(
            name=f"folder:{root}",
            batch_size=BATCH,
            transform=CROPPED,
            max_broken=max_broken,
            **fields,
        ),
        duration="6 steps",
        evals={},
        checkpoint=CheckpointConfig(every="3 steps", keep_best=0),
        log=LogConfig(every="1 steps", tensorboard=False),
    )


def train(cfg: Config, place: Path) -> int:
    cfg.mesh.data = 1
    return fit(cfg, place).status


def column(place: Path, name: str) -> list[float]:
    return [row[name] for row in read_jsonl(place / "metrics.jsonl") if name in row]


@pytest.fixture
def two_broken(root):
    """A folder with a broken image in step 1, one in step 4, and their names.

    Their headers are there: what shows by them is left out before a run.
    """
    source = data.open_source(f"folder:{root}")
    names = [source.example_id(FIRST[i]) for i in (1, 13)]
    for name in names:
        file = Path(name)
        encoded = file.read_bytes()
        file.write_bytes(encoded[: encoded.index(b"\xff\xda") + 40])
    return root, names


@pytest.mark.slow
def test_a_run_counts_what_it_replaced_and_goes_on_with_the_same_bits(two_broken, tmp_path, capsys):
    root, names = two_broken
    reference = tmp_path / "reference"
    assert train(run(root, 2), reference) == 0
    assert column(reference, "data/broken") == [1, 1, 1, 2, 2, 2]
    lines = [x for x in capsys.readouterr().out.splitlines() if x.startswith("warning: ")]
    assert [x.split(": ")[1] for x in lines] == names
    assert "truncated" in lines[1]
    assert "); the next example that can be read takes its place" in lines[1]
    assert lines[1].endswith("(2 of data.max_broken=2)")
    # Killed after step 3, continued by a worker process.
    again = tmp_path / "again"
    shutil.copytree(reference, again)
    shutil.rmtree(again / "checkpoints" / "6")
    (again / "finished.json").unlink()
    assert train(run(root, 2, num_workers=1), again) == 0
    for name in ("train/loss", "train/grad_norm", "data/broken"):
        assert column(again, name) == column(reference, name), name
    assert capsys.readouterr().out.count("warning: ") == 1
    # With less allowed it ends where one too many comes; allowed more, it goes on from there.
    place = tmp_path / "strict"
    with refused_by("train.health.unreadable.Unreadable._check", kind=DataError) as caught:
        train(run(root, 1), place)
    assert f"data.max_broken=1: {names[0]}; {names[1]}; " in str(caught.value)
    assert column(place, "data/broken") == [1, 1, 1]
    capsys.readouterr()
    assert train(run(root, 2), place) == 0
    assert f"continuing {place} at step 3 of 6" in capsys.readouterr().out
    for name in ("train/loss", "data/broken"):
        assert column(place, name) == column(reference, name), name


def test_the_command_line_ends_with_one_line_and_its_status(two_broken, tmp_path, capsys):
    root, names = two_broken
    digits = ["main.py", "--config=configs/vit_mu_digits.py", f"--workdir={tmp_path / 'run'}"]
    small = {
        "model.dim": 16,
        "model.depth": 1,
        "model.num_heads": 2,
        "model.num_classes": 3,
        "data.name": f"folder:{root}",
        "data.train_split": "train",
        "data.batch_size": BATCH,
        "evals.val.split": "val",
        "evals.test.split": "val",
        "duration": "6 steps",
        "optim.warmup": "1 steps",
        "log.tensorboard": "false",
        "mesh.data": 1,
    }
    assert main(digits + [f"--config.{key}={value}" for key, value in small.items()]) == 65
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {names[0]}: not a readable image (")
