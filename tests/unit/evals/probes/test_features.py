# SPDX-License-Identifier: Apache-2.0
"""Every example's features once, in the split's order; on the disk all of them or none."""

import dataclasses
import errno
import os

import jax
import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import make_state
from vit_jax import data, models
from vit_jax.data import Crop, TransformConfig
from vit_jax.data.images.decode import decode
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals.probes import base as probes
from vit_jax.evals.probes import features

MODEL = dataclasses.replace(TINY["vit"], image_size=(8, 8), channels=3)
PLAIN = TransformConfig(crop=Crop.NONE)
SHAPE = (8, 8, 3)
MODULE = models.create(MODEL)


def encode(variables, batch):
    return MODULE.apply(variables, data.normalize(batch["image"], (0.5,), (0.25,))).features


@pytest.fixture(scope="module")
def variables():
    return {"params": make_state(MODEL, 0).params}


def open_images(root):
    """Write 15 images of three classes and open them."""
    rng = np.random.default_rng(0)
    for i in range(15):
        file = root / "train" / f"class{i % 3}" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, SHAPE, dtype=np.uint8)).save(file)
    return data.open_source(f"folder:{root}", split="train")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_images(tmp_path_factory.mktemp("images"))


def extract(source, variables, *, num_devices=8, batch_size=4, encode=encode, **kwargs):
    return features.extract(
        encode,
        variables,
        source,
        features.split_batches(source, PLAIN, SHAPE, data.AS_SHOWN),
        shape=SHAPE,
        mesh=sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:num_devices]),
        batch_size=batch_size,
        **kwargs,
    )["features"]


def test_pixels(source):
    found = extract(source, {}, encode=features.pixels)
    image = decode(source.read(3)["image"], 3)
    np.testing.assert_allclose(found.features[3], image.reshape(-1) / np.float32(255), rtol=1e-6)


def test_pixels_of_large_images_are_brought_to_32():
    image = np.zeros((1, 64, 16, 3), np.uint8)
    image[:, 32:] = 255
    found = features.pixels({}, {"image": jax.numpy.asarray(image)}).reshape(1, 32, 16, 3)
    np.testing.assert_allclose(found[:, :15], 0, atol=1e-6)
    np.testing.assert_allclose(found[:, 17:], 1, atol=1e-6)


def test_refuses_what_is_not_finite(source):
    def broken(variables, batch):
        return jax.numpy.log(features.pixels(variables, batch) - 2)

    with pytest.raises(UserError, match=r"train\]: the features are not finite"):
        extract(source, {}, encode=broken)


def names(folder):
    return sorted(os.listdir(folder))


def write_two(folder, value, *, force=False):
    with features.written(folder, force=force) as files:
        files.allocate("train")("features", (2, 3), np.dtype(np.float32))[:] = value
        files.write_readme("Two", ("train",))


def test_nothing_is_overwritten_unless_asked(tmp_path):
    write_two(tmp_path, 1)
    with refused_by("storage.files.check_folder", "--features"):
        write_two(tmp_path, 2)
    assert (np.load(tmp_path / "features_train.npy") == 1).all()
    (tmp_path / "mine.txt").write_text("kept")
    write_two(tmp_path, 3, force=True)
    assert (np.load(tmp_path / "features_train.npy") == 3).all()
    assert names(tmp_path) == ["FEATURES.md", "features_train.npy", "mine.txt"]
    (tmp_path / "features_mine.npy").write_bytes(b"kept")
    with features.written(tmp_path, force=True) as files:
        files.allocate("images")("features", (2, 3), np.dtype(np.float32))[:] = 4
        files.write_readme("Other", ("images",))
    others = ["features_mine.npy", "mine.txt"]
    assert names(tmp_path) == sorted(["FEATURES.md", "features_images.npy", *others])


def test_an_error_leaves_what_was_there(tmp_path):
    write_two(tmp_path, 1)

    def write_half():
        with features.written(tmp_path, force=True) as files:
            files.allocate("train")("features", (2, 3), np.dtype(np.float32))[:] = 2
            raise KeyError

    with pytest.raises(KeyError):
        write_half()
    assert (np.load(tmp_path / "features_train.npy") == 1).all()
    assert names(tmp_path) == ["FEATURES.md", "features_train.npy"]


def test_a_disk_without_room_is_told_before_the_work(tmp_path, monkeypatch):
    def full(descriptor, offset, size):
        assert size == 128 + 2 * 3 * 4 == os.fstat(descriptor).st_size
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(UserError, match=r"cannot write to .*: No space left on device"):
            write_two(tmp_path, 1)
    (tmp_path / "file").write_text("")
    with refused_by("storage.files.check_folder", "--features"):
        write_two(tmp_path / "file", 1)
    with refused_by("storage.files.check_folder", "--features"):
        write_two(tmp_path / "file" / "below", 1)
    assert names(tmp_path) == ["file"]


def test_cut(tmp_path):
    with features.written(tmp_path, force=False) as files:
        array = files.allocate("images")("features", (5, 2), np.dtype(np.float32))
        array[:] = np.arange(10).reshape(5, 2)
        files.cut("features_images", 3)
    assert np.load(tmp_path / "features_images.npy").tolist() == [[0, 1], [2, 3], [4, 5]]
    assert names(tmp_path) == ["features_images.npy"]


def some(name, labels, num_classes=4):
    return features.FeatureSet(
        name=name,
        features=np.zeros((len(labels), 2), np.float32),
        labels=np.array(labels),
        class_names=[f"c{k}" for k in range(num_classes)],
    )


def test_splits_that_no_probe_can_use():
    good = some("good", np.int32([0, 1]))
    for bad, message in (
        (some("hot", np.eye(4, dtype=np.uint8)), "hot has several labels per image"),
        (some("bare", np.int32([-1, -1])), "bare has images without a label"),
        (some("wide", np.int32([0, 4])), "wide has images without a label"),
    ):
        with pytest.raises(UserError, match=message):
            probes.check_sets(good, bad)
        with pytest.raises(UserError, match=message):
            probes.check_sets(bad, good)
    with pytest.raises(UserError, match="one holds images of a single class"):
        probes.check_sets(some("one", np.int32([2, 2])), good)
    probes.check_sets(good, good)
    assert probes.unseen_classes(good, good) == []
    (note,) = probes.unseen_classes(good, some("test", np.int32([0, 2, 2, 3])))
    assert note == (
        "2 of the classes of test have no image in good (the first: c2); its 3 images of them "
        "count as wrong"
    )


def test_result():
    result = probes.Score(method="knn", settings={"k": 1}, top1=(0.5, 0.7), num_test=100)
    assert result.mean == pytest.approx(0.6)
    assert result.deviation == pytest.approx(np.std([0.5, 0.7], ddof=1))
    # Wilson's interval of 60 in 100, as R's prop.test(60, 100, correct=FALSE) has it.
    assert result.interval == pytest.approx((0.5020026, 0.6905987), abs=1e-6)
    assert dataclasses.replace(result, top1=(0.5,)).deviation is None
