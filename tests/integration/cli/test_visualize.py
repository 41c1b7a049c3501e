# SPDX-License-Identifier: Apache-2.0
"""`visualize --augmentations` shows what the pipeline and the step really make."""

import sys

import numpy as np
import pytest

from tests.photos import write_folder
from tests.unit.cli.test_visualize import DIGITS, ROOT, open_sheet, run
from tests.unit.test_configs import load
from vit_jax import data, objectives
from vit_jax.figures.contact_sheet import Tile
from vit_jax.visual import augmentation_sheets

SHEETS = ("transform.png", "operations.png", "batch.png")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    root = tmp_path_factory.mktemp("photos")
    write_folder(root, {"train": 1}, ("china", "flower"))
    for name in ("china", "flower"):
        (root / "train" / name / "0.jpg").rename(root / f"{name}.jpg")
    return [str(root / "china.jpg"), str(root / "flower.jpg")]


@pytest.fixture
def config():
    """A run on 16x16 colour images with everything on."""
    cfg = load(ROOT / "configs" / "vit_mu_digits.py")
    cfg.model.image_size, cfg.model.channels = (16, 16), 3
    cfg.data.transform = data.TransformConfig(
        crop=data.Crop.RANDOM_RESIZED, flip=True, auto_augment="3-augment", color_jitter=0.3
    )
    cfg.evals["val"].transform = data.TransformConfig(crop=data.Crop.CENTER, crop_ratio=0.5)
    cfg.data.mean, cfg.data.std = (0.4, 0.5, 0.6), (0.2, 0.3, 0.25)
    cfg.data.mix = data.MixConfig(cutmix_alpha=1.0, partner=data.Partner.REVERSED)
    cfg.data.erasing_prob = 0.5
    cfg.seed = 3
    return cfg


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[list[Tile]]]:
    """Every sheet's rows by the first word of its title, instead of its PNG."""
    seen = {}

    def render(rows: list[list[Tile]], title: str) -> bytes:
        seen[title.split()[0].rstrip(":")] = rows
        return b""

    monkeypatch.setattr(augmentation_sheets, "render", render)
    return seen


def test_the_tiles_are_those_of_the_pipeline_and_of_the_step(config, files, drawn, tmp_path):
    lines = augmentation_sheets.write_sheets(config, files, tmp_path, 4)
    assert lines == [str(tmp_path / name) for name in SHEETS]
    source = augmentation_sheets._read_files(files)

    rows = drawn["data.transform"]
    assert [tile.caption for tile in rows[1]] == [
        "flower, as evaluated",
        *(f"draw {i}" for i in range(1, 5)),
    ]
    plain = next(iter(config.evals.values())).transform
    with data.eval_batches(source, data.one_view(plain, (16, 16), 3), batch_size=2) as stream:
        evaluated = next(stream)["image"]
    for row, image in zip(rows, evaluated, strict=True):
        np.testing.assert_array_equal(row[0].image, image)
        assert len({tile.image.tobytes() for tile in row}) == 5  # every draw is another
        assert {tile.image.shape for tile in row} == {(16, 16, 3)}

    parts = [tile for row in drawn["what"] for tile in row]
    names = ["china", "grayscale", "solarize", "blur", "color_jitter 0.3"]
    assert [tile.caption for tile in parts] == names
    np.testing.assert_array_equal(parts[0].image, evaluated[0])
    half = np.where(evaluated[0] < 128, evaluated[0], 255 - evaluated[0])
    np.testing.assert_array_equal(parts[2].image, half)

    assert [len(row) for row in drawn["batches"]] == [4, 4, 4]
    config.data.batch_size, config.data.num_workers = 4, 0
    with data.train_batches(
        source,
        config.data,
        views=data.one_view(config.data.transform, (16, 16), 3),
        seed=3,
        start_step=1,
    ) as stream:
        batch = next(stream)
    erased = []
    for i, tile in enumerate(drawn["batches"][1]):
        # Every pixel is of the image itself, of the other, or noise.
        own = np.abs(batch["image"][i].astype(int) - tile.image).max(-1) <= 1
        other = np.abs(batch["image"][3 - i].astype(int) - tile.image).max(-1) <= 1
        shares = dict.fromkeys(("china", "flower"), 0)
        for line in tile.caption.splitlines():
            percent, name = line.split(" % ")
            shares[name] += int(percent)
        assert sum(shares.values()) in (99, 100, 101)
        percents = [int(line.split(" %")[0]) for line in tile.caption.splitlines()]
        assert percents == sorted(percents, reverse=True)
        noise = 1 - (own | other).mean()
        erased.append(noise)
        label = source.class_names[batch["label"][i]]
        if batch["label"][i] != batch["label"][3 - i]:
            assert own.mean() - 0.02 <= shares[label] / 100 <= own.mean() + noise + 0.02
    assert 0.02 < max(erased) < 0.7
    captions = [tile.caption.splitlines() for row in drawn["batches"] for tile in row]
    assert max(map(len, captions)) == 2


def test_every_image_has_draws_of_its_own_and_the_step_follows_the_seed(config, files, drawn):
    source = augmentation_sheets._read_files([files[0]] * 2)
    augmentation_sheets._transform_sheet(config, augmentation_sheets._plain(config), source, 1)
    first, second = drawn["data.transform"]
    assert first[0].image.tobytes() == second[0].image.tobytes()
    assert first[1].image.tobytes() != second[1].image.tobytes()

    config.data.transform = data.TransformConfig(crop=data.Crop.RESIZE)
    config.data.mix, config.data.erasing_prob = data.MixConfig(), 1.0
    seen = set()
    for config.seed in (0, 1):
        views, source = (
            augmentation_sheets._plain(config),
            augmentation_sheets._read_files(files[:1]),
        )
        augmentation_sheets._batch_sheet(config, views, source, 1)
        seen |= {row[0].image.tobytes() for row in drawn["batches"]}
    assert len(seen) == 6  # two runs of three steps


def test_the_seed_fixes_every_pixel(config, files, tmp_path):
    config.data.erasing_prob = 0.0  # quicker to compile

    def sheets(seed: int) -> list[bytes]:
        config.seed = seed
        augmentation_sheets.write_sheets(config, files, tmp_path, 2)
        return [(tmp_path / name).read_bytes() for name in SHEETS]

    first, again, other = sheets(0), sheets(0), sheets(1)
    assert first == again
    assert all(a != b for a, b in zip(first, other, strict=True))


class CropsConfig(objectives.ObjectiveConfig):
    uses_labels = False


class Crops(objectives.Objective):
    """Learns nothing from two large crops and four small ones."""

    @property
    def views(self) -> dict[str, data.View]:
        size = {"global_1": (16, 16), "global_2": (16, 16), "local": (8, 8)}
        policy = {"global_1": "dino-blur1", "global_2": "dino-blur0.1-solarize0.2", "local": ""}
        return {
            name: data.View(
                transform=data.TransformConfig(
                    crop=data.Crop.RANDOM_RESIZED, auto_augment=policy[name]
                ),
                size=size[name],
                channels=3,
                count=4 if name == "local" else 1,
            )
            for name in size
        }


def test_several_views_have_a_row_each(config, files, drawn, tmp_path, monkeypatch):
    monkeypatch.setitem(objectives.OBJECTIVES, "CropsConfig", "crops")
    monkeypatch.setitem(sys.modules, "vit_jax.objectives.crops", sys.modules[__name__])
    config.objective = CropsConfig()
    lines = augmentation_sheets.write_sheets(config, files, tmp_path, 6)
    assert lines[:2] == [str(tmp_path / name) for name in SHEETS[:2]]
    assert lines[2].startswith("no batch.png: it shows mixing and erasing of one view")
    rows = drawn["global_1,"]
    assert [row[1].caption for row in rows] == ["global_1 1", "global_2 1", "local 1"] * 2
    assert [row[0].caption.split(",")[0] for row in rows] == ["china"] * 3 + ["flower"] * 3
    for row in rows:
        small = row[1].caption.startswith("local")
        assert {tile.image.shape for tile in row[1:]} == {(8, 8, 3) if small else (16, 16, 3)}
        assert len({tile.image.tobytes() for tile in row}) == 7

    source = augmentation_sheets._read_files(files).only(1)
    config.data.batch_size = 6
    made = Crops(config.objective, config.model, config.data).views
    with data.train_batches(source, config.data, views=made, seed=3, start_step=1) as stream:
        batch = next(stream)
    small = [*batch["local"][0], *batch["local"][1][:2]]
    for tile, expected in zip(rows[5][1:], small, strict=True):
        np.testing.assert_array_equal(tile.image, expected)
    for tile, expected in zip(rows[4][1:], batch["global_2"], strict=True):
        np.testing.assert_array_equal(tile.image, expected)

    # The operations of each policy of the views; the local one has none.
    names = [tile.caption for row in drawn["what"] for tile in row]
    assert [names.count(name) for name in ("china", "blur", "solarize")] == [2, 2, 1]


def test_files_are_named_one_after_another_or_one_by_one(files, drawn, tmp_path):
    resize = "--config.data.transform.crop=resize"
    for args in (["--images", *files], [f"--images={files[0]}", f"--images={files[1]}"]):
        drawn.clear()
        assert run(DIGITS, resize, *args, f"--out={tmp_path}") == 0
        titles = [row[0].caption for row in drawn["data.transform"]]
        assert titles == ["china, as evaluated", "flower, as evaluated"]


def test_a_sheet_of_noise_still_fits_a_page():
    rng = np.random.default_rng(0)
    noise = [Tile(rng.integers(0, 256, (160, 160, 3)).astype(np.uint8), "x" * 30) for _ in range(8)]
    sheet = open_sheet([noise, noise[:5]])
    assert sheet.shape[1] >= 8 * 48
