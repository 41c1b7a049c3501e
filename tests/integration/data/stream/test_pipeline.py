# SPDX-License-Identifier: Apache-2.0
import itertools
import multiprocessing
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.data.stream.test_pipeline import AS_IS, RANDOM, same, take
from tests.unit.data.test_views import take as views_of
from vit_jax.data import (
    Crop,
    DataConfig,
    Resize,
    TransformConfig,
    eval_batches,
    one_view,
    open_source,
    train_batches,
)
from vit_jax.data.augment import parse
from vit_jax.data.config import crop_ranges
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.data.order import epoch_order


@pytest.fixture(scope="module")
def photos(folder):
    return open_source(f"folder:{folder}", split="train")


@pytest.fixture(scope="module")
def reference(photos):
    return take(photos, 8, num_threads=1)


def plainly(source, index, position, cfg, size, channels):
    """One example of seed 0, a step at a time, with a generator of its own and nothing kept."""
    rng = np.random.Generator(np.random.Philox(key=np.array([0, position], np.uint64)))
    example = source.read(index)
    data, label = example["image"], example["label"]
    image = decode(data, channels, exact=False)
    if cfg.crop in (Crop.INCEPTION, Crop.RANDOM_RESIZED):
        sample = ops.inception_box if cfg.crop is Crop.INCEPTION else ops.random_resized_box
        box = sample(rng, image.shape[0], image.shape[1], *crop_ranges(cfg))
        image = ops.crop_resize(image, box, size, cfg.resize)
    elif cfg.crop is Crop.RANDOM:
        image = ops.resize_cover(image, size, cfg.crop_ratio, cfg.resize)
        image = ops.random_cut(rng, image, size, cfg.pad)
    else:
        image = ops.resize(image, size, cfg.resize)
    if cfg.flip and rng.random() < 0.5:
        image = image[:, ::-1]
    if cfg.degrees:
        names = ("degrees", "translate", "scale", "shear")
        moves = {name: getattr(cfg, name) for name in names}
        (matrix,) = ops.affine_matrices(rng.random((1, 5)), *size, **moves)
        image = ops.warp(np.ascontiguousarray(image), matrix)
    if policy := parse(cfg.auto_augment, (128,)):
        image = policy(np.ascontiguousarray(image), rng)
    return image, label


@pytest.mark.parametrize("name", ["photos", "digits"])
@pytest.mark.parametrize(
    "fields",
    [
        {"crop": Crop.INCEPTION, "flip": True},
        {"crop": Crop.RANDOM_RESIZED, "flip": True, "resize": Resize.BICUBIC},
        {"crop": Crop.RANDOM, "crop_ratio": 1.0, "pad": 4, "flip": True},
        {"crop": Crop.RESIZE, "flip": True, "degrees": 15.0, "shear": 10.0},
        {"crop": Crop.RESIZE, "degrees": 15.0, "auto_augment": "randaug(2,10)"},
    ],
)
def test_every_way_of_being_fast_gives_the_same_batches(photos, tfds_dir, name, fields):
    digits = open_source("digits", str(tfds_dir), "train[:24]")
    source, channels = (photos, 3) if name == "photos" else (digits, 1)
    cfg = TransformConfig(**fields)
    taken = take(source, 6, transform=cfg, channels=channels, num_threads=1)  # 2.5 epochs
    for step, batch in enumerate(taken):
        for row, index in enumerate(batch["index"].tolist()):
            image, label = plainly(source, index, 10 * step + row, cfg, (32, 32), channels)
            np.testing.assert_array_equal(batch["image"][row], image)
            assert batch["label"][row] == label


@pytest.fixture(scope="module")
def repeated(photos):
    return take(photos, 8, num_threads=1, repeats=3)


def test_labels_and_pixels_belong_to_the_index(tfds_dir):
    source = open_source("digits", str(tfds_dir), "train")
    everything = eval_batches(source, one_view(AS_IS, (8, 8), 1), batch_size=len(source))
    with everything:
        stored = next(everything)
    for batch in take(source, 3, transform=AS_IS, size=(8, 8), channels=1, batch_size=64):
        np.testing.assert_array_equal(batch["image"], stored["image"][batch["index"]])
        np.testing.assert_array_equal(batch["label"], stored["label"][batch["index"]])


def test_repeats_are_neighbours_in_the_global_batch(repeated, reference):
    index = np.concatenate([b["index"] for b in repeated])
    for epoch in range(3):
        # The first third of the epoch's order, each three times.
        order = epoch_order(24, 0, epoch)[:8]
        np.testing.assert_array_equal(index[24 * epoch : 24 * epoch + 24], order.repeat(3))
    # What is drawn belongs to the place in the stream, not to the image.
    np.testing.assert_array_equal(repeated[0]["image"][0], reference[0]["image"][0])


@pytest.mark.parametrize("num_threads", [2, 7])
def test_batches_do_not_depend_on_threads(photos, reference, repeated, num_threads):
    same(take(photos, 8, num_threads=num_threads), reference)
    same(take(photos, 8, num_threads=num_threads, repeats=3), repeated)


def test_batches_do_not_depend_on_worker_processes_which_end_with_the_iterator(photos, repeated):
    cfg = DataConfig(batch_size=10, transform=RANDOM, num_workers=2, num_threads=2, repeats=3)
    batches = train_batches(
        photos, cfg, views=one_view(cfg.transform, (32, 32), 3), seed=0, start_step=3
    )
    same(list(itertools.islice(batches, 5)), repeated[3:])
    assert len(multiprocessing.active_children()) == 2
    batches.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("process_count, repeats", [(2, 1), (5, 1), (2, 3)])
@pytest.mark.parametrize("scattered", [False, True])
def test_batches_do_not_depend_on_hosts(
    photos, reference, repeated, process_count, repeats, scattered
):
    reference = repeated if repeats == 3 else reference
    owner = np.arange(10) * process_count // 10
    if scattered:  # several runs each, and some rows alone
        owner = np.random.default_rng(0).permutation(owner)
    joined = [{key: np.zeros_like(x) for key, x in batch.items()} for batch in reference]
    for i in range(process_count):
        rows = np.flatnonzero(owner == i)
        for whole, part in zip(joined, take(photos, 8, rows=rows, repeats=repeats), strict=True):
            for key, value in part.items():
                whole[key][rows] = value
    same(joined, reference)


def test_a_broken_image_is_one_error_with_its_file(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "data")
    broken = tmp_path / "data" / "train" / "cat" / "0.jpg"
    broken.write_bytes(broken.read_bytes()[:-40])  # behind a header that is whole
    source = open_source(f"folder:{tmp_path / 'data'}", split="train")
    with refused_by("data.stream.batches.Batches._put") as caught:
        take(source, 3)
    assert "train/cat/0.jpg: " in str(caught.value)
    assert "\n" not in str(caught.value)


def test_neither_tensorflow_nor_torch_is_imported(tfds_dir, folder):
    code = """
import sys
from vit_jax import data
for name, split in (("digits", "test"), ("folder:" + sys.argv[2], "train")):
    source = data.open_source(name, sys.argv[1], split)
    cfg = data.DataConfig(batch_size=4, transform=data.TransformConfig())
    views = data.one_view(cfg.transform, (8, 8), 1)
    with data.train_batches(source, cfg, views=views, seed=0) as batches:
        next(batches)
    with data.eval_batches(source, views, batch_size=4) as batches:
        next(batches)
print(*sorted({"tensorflow", "torch", "sklearn", "matplotlib"} & set(sys.modules)))
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tfds_dir), str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""


def test_several_views_do_not_depend_on_worker_processes(tfds_dir):
    source = open_source("digits", str(tfds_dir), "train[:24]")
    same(views_of(source, 3, num_workers=2, start_step=2), views_of(source, 5, num_threads=1)[2:])
