# SPDX-License-Identifier: Apache-2.0
import io
import itertools
import shutil
import threading
import time

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_by
from tests.unit.data.conftest import encode
from vit_jax.data import (
    Crop,
    DataConfig,
    TransformConfig,
    eval_batches,
    one_view,
    open_source,
    train_batches,
)
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.data.order import epoch_order
from vit_jax.data.stream import transform as transform_lib
from vit_jax.errors import UserError

AS_IS = TransformConfig(crop=Crop.NONE)
RANDOM = TransformConfig(crop=Crop.INCEPTION, flip=True, auto_augment="randaug(2,10)")


def take(source, count, *, transform=RANDOM, batch_size=10, size=(32, 32), channels=3, **options):
    names = ("num_threads", "num_workers", "repeats", "mean")
    fields = {k: options.pop(k) for k in names if k in options}
    cfg = DataConfig(batch_size=batch_size, transform=transform, **fields)
    options = {"seed": 0, **options}
    with train_batches(
        source, cfg, views=one_view(cfg.transform, size, channels), **options
    ) as batches:
        return list(itertools.islice(batches, count))


def same(a, b):
    assert len(a) == len(b)
    for one, two in zip(a, b, strict=True):
        assert one.keys() == two.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], two[key], err_msg=key)


@pytest.fixture(scope="module")
def photos(folder):
    return open_source(f"folder:{folder}", split="train")


@pytest.fixture(scope="module")
def reference(photos):
    return take(photos, 8, num_threads=1)


@pytest.mark.parametrize(
    "max_bytes, reads, decodes", [(24 * 16 * 16, 24, 24), (24 * 8 * 8, 24, 24), (24 * 63, 72, 72)]
)
def test_a_small_data_set_is_read_and_decoded_once(
    tfds_dir, monkeypatch, max_bytes, reads, decodes
):
    """As the model sees it where that fits, else as decoded, else not at all."""
    monkeypatch.setattr("vit_jax.data.stream.batches.MAX_CACHED_BYTES", max_bytes)
    source = open_source("digits", str(tfds_dir), "train[:24]")
    cfg = TransformConfig(crop=Crop.RESIZE, flip=True)
    calls = {"read": 0, "decode": 0, "resize": 0}

    def count(name, function):
        def counted(*args, **kwargs):
            calls[name] += 1
            return function(*args, **kwargs)

        return counted

    monkeypatch.setattr(source, "read", count("read", source.read))
    monkeypatch.setattr(transform_lib, "decode", count("decode", decode))
    monkeypatch.setattr(ops, "resize", count("resize", ops.resize))
    options = {"views": one_view(cfg, (16, 16), 1)}
    data_cfg = DataConfig(batch_size=24, transform=cfg, prefetch=1, num_threads=1)
    with train_batches(source, data_cfg, seed=0, **options) as batches:
        for _ in range(2):
            next(batches)
        # The third batch may be in work.
        epochs = {24: 1, 72: 2}[reads]
        assert 24 * epochs <= calls["read"] <= reads
        assert 24 * epochs <= calls["decode"] <= decodes
        assert (calls["resize"] == 24) == (max_bytes == 24 * 16 * 16)


@pytest.fixture(scope="module")
def repeated(photos):
    return take(photos, 8, num_threads=1, repeats=3)


def test_each_epoch_holds_every_example_once_in_its_own_order(reference):
    stream = np.concatenate([b["index"] for b in reference])
    epochs = [stream[i : i + 24] for i in (0, 24, 48)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(24))
    assert any(epochs[0] != epochs[1])
    assert any(epochs[1] != epochs[2])


def test_an_example_is_augmented_anew_in_every_epoch(reference):
    seen = [
        batch["image"][row] for batch in reference for row in range(10) if batch["index"][row] == 5
    ]
    assert len(seen) >= 3
    assert (seen[0] != seen[1]).any()
    assert (seen[1] != seen[2]).any()


def test_copies_of_an_image_are_cropped_anew(photos):
    cropped = TransformConfig(crop=Crop.INCEPTION)
    (batch,) = take(photos, 1, transform=cropped, batch_size=24, repeats=3)
    copies = batch["image"].reshape(8, 3, -1)
    for one, two in ((0, 1), (0, 2), (1, 2)):
        assert (copies[:, one] != copies[:, two]).any(-1).all()


def test_starting_at_a_step_is_skipping_to_it(photos, reference, repeated):
    same(take(photos, 3, start_step=5), reference[5:])
    same(take(photos, 3, start_step=5, repeats=3), repeated[5:])


def test_seeds_differ_in_order_and_are_not_each_others_epochs(photos, reference):
    other = take(photos, 8, seed=1)
    assert (other[0]["index"] != reference[0]["index"]).any()
    assert (epoch_order(24, 1, 0) != epoch_order(24, 0, 1)).any()


@pytest.mark.parametrize("process_count", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [6, 12, 30])
def test_evaluation_counts_every_example_once(photos, batch_size, process_count):
    shares = []
    for i in range(process_count):
        with eval_batches(
            photos,
            one_view(TransformConfig(), (16, 16), 1),
            batch_size=batch_size,
            rows=np.arange(i, batch_size, process_count),
        ) as batches:
            shares.append(list(batches))
    assert {len(share) for share in shares} == {-(-24 // batch_size)}
    rows = [b for share in shares for b in share]
    mask, index, label = (np.concatenate([b[k] for b in rows]) for k in ("mask", "index", "label"))
    assert len(mask) == batch_size * len(shares[0])
    assert sorted(index[mask == 1]) == list(range(24))
    assert (index[mask == 0] == -1).all()
    for i, one in zip(index[mask == 1], label[mask == 1], strict=True):
        assert one == photos.read(int(i))["label"]
    for batch in rows:
        assert not batch["image"][batch["mask"] == 0].any()


def test_evaluation_decodes_exactly_and_training_fast(photo, tmp_path):
    for split in ("train", "val"):
        (tmp_path / split / "cat").mkdir(parents=True)
        (tmp_path / split / "cat" / "a.jpg").write_bytes(encode(photo[:64, :64], "JPEG"))
    source = open_source(f"folder:{tmp_path}", split="val")
    with eval_batches(source, one_view(AS_IS, (64, 64), 3), batch_size=1) as batches:
        exact = next(batches)["image"][0]
    (fast,) = take(source, 1, transform=AS_IS, size=(64, 64), batch_size=1)
    np.testing.assert_array_equal(exact, decode(source.read(0)["image"], 3, exact=True))
    np.testing.assert_array_equal(fast["image"][0], decode(source.read(0)["image"], 3, exact=False))
    assert (exact != fast["image"][0]).any()


def test_policies_fill_with_the_mean_of_the_data(photos, monkeypatch):
    filled = []
    monkeypatch.setattr(
        "vit_jax.data.stream.transform.parse", lambda text, fill: filled.append((text, fill))
    )
    take(photos, 1, mean=(0.485, 0.456, 0.406))  # timm's tuple for ImageNet
    take(photos, 1, mean=(0.25,))
    assert filled == [("randaug(2,10)", (124, 116, 104)), ("randaug(2,10)", (64,))]


def test_a_random_transform_is_refused_for_evaluation(photos):
    with refused_by("data.checks.check_fixed"):
        eval_batches(photos, one_view(RANDOM, (16, 16), 3), batch_size=4)


def test_shapes_and_dtypes_of_a_batch(photos, tfds_dir):
    for source, channels in ((photos, 3), (open_source("digits", str(tfds_dir), "test"), 1)):
        views = one_view(TransformConfig(), (16, 16), channels)
        cfg = DataConfig(batch_size=6, transform=TransformConfig())
        with train_batches(source, cfg, views=views, seed=0) as batches:
            train = next(batches)
        with eval_batches(source, views, batch_size=6) as batches:
            evaluation = next(batches)
        for batch, masked in ((train, False), (evaluation, True)):
            spec = {"image": ((6, 16, 16, channels), np.uint8), "index": ((6,), np.int32)}
            spec["label"] = ((6, *source.spec["label"].shape), source.spec["label"].dtype)
            spec |= {"mask": ((6,), np.float32)} if masked else {}
            for name in () if masked else ("broken", "reason"):  # which stay on the host
                assert len(batch.pop(name)) == 6
            assert {k: (v.shape, v.dtype) for k, v in batch.items()} == spec


@pytest.mark.parametrize("damage", ["deleted", "dangling", "directory", "text", "huge"])
def test_a_file_that_turned_bad_after_the_start_is_one_error(folder, tmp_path, damage, monkeypatch):
    shutil.copytree(folder, tmp_path / "data")
    source = open_source(f"folder:{tmp_path / 'data'}", split="train")
    bad = tmp_path / "data" / "train" / "cat" / "2.png"
    data = bad.read_bytes()
    bad.unlink()
    if damage == "dangling":
        bad.symlink_to(tmp_path / "nowhere")
    elif damage == "directory":
        bad.mkdir()
    elif damage == "text":
        bad.write_text("no image")
    elif damage == "huge":
        with Image.open(io.BytesIO(data)) as image:
            image.save(bad, "TIFF")  # which goes through Pillow
        monkeypatch.setattr("PIL.Image.MAX_IMAGE_PIXELS", 10)
    with pytest.raises(
        UserError, match=r"train/cat/2\.png: not a readable image \(.+\); repair"
    ) as caught:
        take(source, 3)
    assert "\n" not in str(caught.value)
    assert "0x" not in str(caught.value)


def test_an_error_of_opencv_is_one_line(photos, monkeypatch):
    def broken(*_):
        cv2.resize(np.zeros((0, 0), np.uint8), (1, 1))

    monkeypatch.setattr("vit_jax.data.stream.transform.Transform.view", broken)
    with refused_by("data.stream.batches.Batches._put"):
        take(photos, 1)


def test_closing_ends_the_threads_at_once(photos):
    before = set(threading.enumerate())
    cfg = DataConfig(batch_size=8, transform=RANDOM, num_threads=3)
    batches = train_batches(photos, cfg, views=one_view(cfg.transform, (64, 64), 3), seed=0)
    next(batches)
    start = time.monotonic()
    batches.close()
    batches.close()  # again does no harm
    with pytest.raises(ValueError, match="closed"):
        next(batches)
    assert time.monotonic() - start < 1
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith(("decode", "batches")):
            thread.join(5)
            assert not thread.is_alive()
