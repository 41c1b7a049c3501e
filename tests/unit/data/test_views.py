# SPDX-License-Identifier: Apache-2.0
"""Several views of an example: two global crops and four local ones, each of its own transform."""

import itertools
import threading
from typing import Any

import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import Crop, DataConfig, Resize, TransformConfig, View
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.data.stream import batches
from vit_jax.data.stream import transform as transform_lib

BATCH, SEED = 10, 5
GLOBAL: dict[str, Any] = {"crop": Crop.RANDOM_RESIZED, "area": (0.3, 1.0), "resize": Resize.BICUBIC}
LOCAL: dict[str, Any] = {**GLOBAL, "area": (0.05, 0.3)}


def views(channels: int) -> dict[str, View]:
    first = TransformConfig(**GLOBAL, auto_augment="dino-blur1")
    second = TransformConfig(**GLOBAL, auto_augment="dino-blur0.1-solarize0.2", flip=True)
    local = TransformConfig(**LOCAL, degrees=10.0)
    return {
        "global_1": View(transform=first, size=(12, 10), channels=channels),
        "global_2": View(transform=second, size=(12, 12), channels=channels),
        "local": View(transform=local, size=(7, 6), channels=channels, count=4),
    }


SHAPES = {"global_1": (12, 10), "global_2": (12, 12), "local": (4, 7, 6)}


def take(source: data.Source, count: int, **options: Any) -> list[data.Batch]:
    fields = {key: options.pop(key) for key in ("num_threads", "num_workers") if key in options}
    cfg = DataConfig(batch_size=BATCH, **fields)
    options = {"seed": SEED, "views": views(source_channels(source)), **options}
    with data.train_batches(source, cfg, **options) as stream:
        return list(itertools.islice(stream, count))


def source_channels(source: data.Source) -> int:
    return 1 if source.name.startswith("digits") else 3


def assert_same(some: list[data.Batch], others: list[data.Batch]) -> None:
    for one, other in zip(some, others, strict=True):
        assert one.keys() == other.keys()
        for key in one:
            np.testing.assert_array_equal(one[key], other[key], err_msg=key)


@pytest.fixture(scope="module", params=["digits", "photographs"])
def source(request, tfds_dir, folder) -> data.Source:
    if request.param == "digits":
        return data.open_source("digits", str(tfds_dir), "train[:24]")
    return data.open_source(f"folder:{folder}", split="train")


@pytest.fixture(scope="module")
def reference(source) -> list[data.Batch]:
    """Seven batches of two epochs and a part, made by one thread."""
    return take(source, 7, num_threads=1)


def test_each_view_has_its_shape(source, reference):
    channels = source_channels(source)
    for name, shape in SHAPES.items():
        for batch in reference:
            assert (batch[name].shape, batch[name].dtype) == ((BATCH, *shape, channels), np.uint8)
            assert batch[name].std() > 10  # of real images


def test_each_image_is_its_transform_of_the_decoded_example(source, reference):
    """With a generator of its own, whose counter begins at the number of the draw."""
    transforms = []
    for name, view in views(source_channels(source)).items():
        transform = transform_lib.Transform(
            cfg=view.transform, image_size=view.size, channels=view.channels, exact=False
        )
        transforms += [(name, index, transform) for index in range(view.count)]
    for step, row in ((0, 0), (2, 5), (6, 9)):
        batch = reference[step]
        found = source.read(int(batch["index"][row]))
        image = decode(found["image"], source_channels(source), exact=False)
        for number, (name, index, transform) in enumerate(transforms):
            key = np.array([SEED, step * BATCH + row], np.uint64)
            rng = np.random.Generator(np.random.Philox(key=key, counter=number << 128))
            drawn = batch[name][row] if name != "local" else batch[name][row, index]
            np.testing.assert_array_equal(drawn, transform.vary(image, rng), err_msg=f"{number}")
        assert batch["label"][row] == found["label"]


def test_every_crop_is_drawn_for_itself(reference):
    """Within an example, and when the example comes again."""
    seen: dict[int, list[bytes]] = {}
    for batch in reference:
        for row, index in enumerate(batch["index"].tolist()):
            images = seen.setdefault(index, [])
            images += [crop.tobytes() for crop in batch["local"][row]]
            images += [batch[name][row].tobytes() for name in ("global_1", "global_2")]
    assert len(seen) == 24
    assert max(map(len, seen.values())) == 3 * 6
    distinct = sum(len(set(images)) for images in seen.values())
    assert distinct >= 0.98 * sum(map(len, seen.values()))  # a cut of the sky is white


def test_two_views_of_one_transform_differ(source):
    view = views(source_channels(source))["global_1"]
    (batch,) = take(source, 1, views={"one": view, "two": view})
    assert (batch["one"] != batch["two"]).reshape(BATCH, -1).any(-1).all()


@pytest.mark.parametrize("num_threads", [2, 5])
def test_batches_depend_on_the_seed_and_the_step_alone(source, reference, num_threads):
    assert_same(take(source, 7, num_threads=num_threads), reference)
    assert_same(take(source, 2, num_threads=num_threads, start_step=5), reference[5:])
    other = take(source, 1, seed=SEED + 1)[0]
    assert all((other[name] != reference[0][name]).any() for name in SHAPES)


def test_nothing_kept_gives_the_same(source, reference, monkeypatch):
    monkeypatch.setattr(batches, "MAX_CACHED_BYTES", 0)
    assert_same(take(source, 7, num_threads=2), reference)


def test_rows_are_those_of_the_global_batch(source, reference):
    rows = np.array([1, 4, 7])
    for share, whole in zip(take(source, 3, rows=rows), reference[:3], strict=True):
        for name in share:
            np.testing.assert_array_equal(share[name], whole[name][rows], err_msg=name)


@pytest.mark.parametrize("fits, epochs", [(True, 1), (False, 3)])
def test_an_example_is_decoded_once_for_all_its_views(source, monkeypatch, fits, epochs):
    """Once in the run where the images fit, else once whenever the example comes."""
    calls, here = [], threading.current_thread()

    def counted(*args: Any, **fields: Any) -> np.ndarray:
        if threading.current_thread() is here:  # a closed stream of another test may be in work
            calls.append(fields)
        return decode(*args, **fields)

    monkeypatch.setattr(transform_lib, "decode", counted)
    monkeypatch.setattr(batches, "MAX_CACHED_BYTES", batches.MAX_CACHED_BYTES if fits else 0)
    made = batches.Batches(
        source=source,
        views=views(source_channels(source)),
        fields=("label",),
        batch_size=24,
        rows=np.arange(24),
        length=3,
        num_threads=1,
        seed=SEED,
    )
    for step in range(3):
        made[step]
    assert len(calls) == 24 * epochs
    assert not any("num_rows" in fields or "min_size" in fields for fields in calls)


def test_what_is_kept_of_a_shared_image_is_one_copy(source):
    channels = source_channels(source)
    transforms = [each.transform for each in transform_lib.draws(views(channels), exact=False)]
    size = decode(source.read(0)["image"], channels, exact=False).nbytes
    cache = batches.PixelCache(1, list(dict.fromkeys(transforms)), max_bytes=size)
    cache.load(0, source.read(0)["image"], {})
    one, two, three = cache[0].images
    assert one is two
    assert two is three
    assert isinstance(one, np.ndarray)
    assert not one.flags.writeable


def test_views_may_differ_in_channels(source):
    plain = TransformConfig(crop=Crop.RESIZE)
    both = {
        f"of_{channels}": View(transform=plain, size=(8, 8), channels=channels, count=2)
        for channels in (1, 3)
    }
    (batch,) = take(source, 1, views=both)
    for row, index in enumerate(batch["index"].tolist()):
        for channels in (1, 3):
            image = decode(source.read(index)["image"], channels, exact=False)
            expected = ops.resize(image, (8, 8), plain.resize)
            for each in batch[f"of_{channels}"][row]:
                np.testing.assert_array_equal(each, expected)
