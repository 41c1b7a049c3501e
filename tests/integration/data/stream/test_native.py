# SPDX-License-Identifier: Apache-2.0
"""Batches of images of their own shapes are functions of the seed and the step alone."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import (
    GRIDS,
    Crop,
    DataConfig,
    Source,
    TransformConfig,
    eval_batches,
    one_view,
    open_source,
    train_batches,
)
from vit_jax.data.images.native import native_grid, patchify
from vit_jax.data.stream.native import drawn_length
from vit_jax.data.stream.packing import slots

PATCH, LENGTHS = (4, 4), (8, 16, 32)
RANDOM = TransformConfig(crop=Crop.NATIVE_RANDOM, lengths=LENGTHS, flip=True, area=(0.3, 1.0))
PACKED = TransformConfig(crop=Crop.NATIVE_RANDOM, lengths=(32,), flip=True, area=(0.3, 1.0))
WHOLE = TransformConfig(crop=Crop.NATIVE, lengths=(16,))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root, rng = Path(tmp_path_factory.mktemp("shapes")), np.random.default_rng(0)
    for i in range(14):
        height, width = rng.integers(9, 40, 2).tolist()
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        folder = root / "train" / f"class{i % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        exif = Image.Exif()
        exif[0x0112] = 6 if i == 5 else 1  # one lies on its side
        Image.fromarray(pixels).save(folder / f"{i}.{'jpg' if i % 3 else 'png'}", exif=exif)
    return open_source(f"folder:{root}", split="train")


def take(
    source: Source, transform: TransformConfig, count: int = 4, first: int = 0, **how: object
) -> list[dict[str, np.ndarray]]:
    pack = how.pop("pack", 0)
    cfg = DataConfig(batch_size=6, transform=transform, pack=pack, num_threads=1)
    views = one_view(transform, (16, 16), 3, patch=PATCH)
    given = {"views": views, "seed": 3, "start_step": first, **how}
    with train_batches(source, cfg, **given) as stream:
        return [next(stream) for _ in range(count)]


def equal(ours: list[dict[str, np.ndarray]], theirs: list[dict[str, np.ndarray]]) -> None:
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key])


def rows_of(batches: list[dict[str, np.ndarray]], rows: slice) -> list[dict[str, np.ndarray]]:
    return [{key: x[rows] for key, x in batch.items()} for batch in batches]


@pytest.mark.parametrize("pack", [0, 4])
def test_resumes_at_any_step_and_is_the_same_on_every_layout(source: Source, pack: int) -> None:
    transform = PACKED if pack else RANDOM
    whole = take(source, transform, pack=pack)
    equal(take(source, transform, 2, first=2, pack=pack), whole[2:])
    for rows in (slice(0, 2), slice(2, 4)):
        own = np.arange(4)[rows]
        equal(take(source, transform, rows=own, pack=pack), rows_of(whole, rows))
    cut = [batch["image"].shape[1] for batch in whole]
    if pack:
        assert cut == [32] * 4
        shape = (4, slots(6, 4, 32))
        assert all(batch["label"].shape == batch["index"].shape == shape for batch in whole)
    else:
        assert cut == [drawn_length(LENGTHS, 3, step) for step in range(4)]
        assert {drawn_length(LENGTHS, 3, step) for step in range(40)} == set(LENGTHS)
    for batch in whole:
        areas, length = batch[GRIDS].prod(axis=-1), batch["image"].shape[1]
        assert (areas[batch["index"] >= 0] > 0).all()
        per_row = areas.reshape(len(batch["image"]), -1).sum(axis=1)
        assert per_row.max() <= length
        for image, filled in zip(batch["image"], per_row, strict=True):
            assert image[:filled].any() == (filled > 0)  # a row may be empty
            assert not image[filled:].any()


def test_packed_batches_have_each_image_once_at_its_own_size(source: Source) -> None:
    """Positions of the stream are those of padded batches, and so are the images."""
    (packed,), (padded,) = (take(source, PACKED, 1, pack=n) for n in (4, 0))
    assert sorted(packed["index"][packed["index"] >= 0]) == sorted(padded["index"])
    label = dict(zip(padded["index"], padded["label"], strict=True))
    for row in range(4):
        start = 0
        for slot, index in enumerate(packed["index"][row]):
            rows, columns = packed[GRIDS][row, slot]
            if index < 0:
                assert rows == columns == 0
                continue
            assert packed["label"][row, slot] == label[index]
            there = padded[GRIDS][list(padded["index"]).index(index)]
            if (there == (rows, columns)).all():  # enlarged to the row, as it happens
                mine = packed["image"][row, start : start + rows * columns]
                theirs = padded["image"][list(padded["index"]).index(index), : rows * columns]
                np.testing.assert_array_equal(mine, theirs)
            start += rows * columns


def test_evaluation_sees_whole_images_by_the_published_rule(source: Source) -> None:
    views = one_view(WHOLE, (16, 16), 3, patch=PATCH)
    with eval_batches(source, views, batch_size=5, num_threads=1) as stream:
        batches = list(stream)
    found = {key: np.concatenate([batch[key] for batch in batches]) for key in batches[0]}
    assert found["image"].shape == (15, 16, 48)
    assert found["mask"].tolist() == [1] * 14 + [0]
    assert not found[GRIDS][14].any()
    for i in range(14):
        with Image.open(io.BytesIO(source.read(i)["image"])) as image:
            width, height = image.size if image.getexif().get(0x0112, 1) != 6 else image.size[::-1]
        assert found[GRIDS][i].tolist() == list(native_grid(height, width, PATCH, 16))
    plain = np.zeros((16, 8, 3), np.uint8)
    assert patchify(plain, PATCH).shape == (8, 48)
