# SPDX-License-Identifier: Apache-2.0
"""Batches with targets of pixels: they lie where their images do, whoever makes the batch."""

import dataclasses
from typing import Any

import cv2
import numpy as np
import pytest

from vit_jax import data
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.sources.base import Labelled
from vit_jax.data.targets import (
    DEPTH,
    IGNORED,
    LABEL_MAP,
    SEGMENT_CLASS,
    SEGMENTS,
    SEGMENTS_CUT,
    PixelTarget,
    TargetKind,
)
from vit_jax.errors import DataError, UserError

SIZE = (32, 24)
ALL_SEGMENTS = (SEGMENTS, SEGMENT_CLASS, SEGMENTS_CUT)
RANDOM = TransformConfig(crop=Crop.SCALE_JITTER, zoom=(0.6, 2.0), flip=True)


class Drawn(Labelled):
    """Images whose grey is 40 times the class of a pixel, and every kind of target of them."""

    name, class_names = "drawn[train]", ("ground", "a", "b", "c", "d", "e")

    def __init__(self, kind: TargetKind, count: int = 12, boxes: bool = False) -> None:
        self.target_kind, self.labels, self._boxes = kind, None, boxes
        self._maps = []
        for i in range(count):
            rng = np.random.default_rng(i)
            height, width = rng.integers(30, 60, 2)
            classes = np.zeros((height, width), np.int16)
            for k in range(1, 6):
                top, left = rng.integers(0, height - 8), rng.integers(0, width - 8)
                classes[top : top + 20, left : left + 14] = k
            self._maps.append(classes)

    def __len__(self) -> int:
        return len(self._maps)

    def read(self, index: int) -> dict[str, Any]:
        image = np.repeat((40 * self._maps[index]).astype(np.uint8)[..., None], 3, -1)
        return {"image": cv2.imencode(".png", image)[1].tobytes(), "label": index % 6}

    def target(self, index: int) -> PixelTarget:
        classes = self._maps[index]
        if self.target_kind is TargetKind.PIXELS:
            return PixelTarget(size=classes.shape, label_map=classes)
        if self.target_kind is TargetKind.DEPTH:
            return PixelTarget(size=classes.shape, depth=classes.astype(np.float32) + 1)
        found = np.unique(classes[classes > 0])
        masks = classes == found[:, None, None]
        boxes = [[*m.nonzero()[1][[0]], 0, m.nonzero()[1].max() + 1, len(m)] for m in masks]
        return PixelTarget(
            size=classes.shape,
            masks=None if self._boxes else masks,
            boxes=np.array(boxes, np.float32) if self._boxes else None,
            classes=found.astype(np.int32),
        )

    def example_id(self, index: int) -> str:
        return f"drawing {index}"

    def digest(self) -> str:
        return "0" * 16


def batches(
    source: Any,
    fields: tuple[str, ...],
    transform: TransformConfig = RANDOM,
    rows: Any = None,
    start: int = 0,
    count: int = 3,
    **settings: Any,
) -> list[dict[str, np.ndarray]]:
    cfg = DataConfig(batch_size=8, transform=transform, **settings)
    views = data.one_view(transform, SIZE, 3)
    stream = data.train_batches(
        source, cfg, views=views, fields=fields, seed=5, rows=rows, start_step=start
    )
    with stream:
        return [next(stream) for _ in range(count)]


CROPS = {
    "resize": TransformConfig(crop=Crop.RESIZE, flip=True),
    "center": TransformConfig(crop=Crop.CENTER, flip=True),
    "squash_center": TransformConfig(crop=Crop.SQUASH_CENTER, crop_ratio=0.7, flip=True),
    "random": TransformConfig(crop=Crop.RANDOM, crop_ratio=0.8, pad=5, flip=True),
    "squash_random": TransformConfig(crop=Crop.SQUASH_RANDOM, crop_ratio=0.7, flip=True),
    "inception": TransformConfig(crop=Crop.INCEPTION, flip=True),
    "random_resized": TransformConfig(crop=Crop.RANDOM_RESIZED, flip=True),
    "scale_jitter": RANDOM,
    "affine": TransformConfig(
        crop=Crop.RESIZE, flip=True, degrees=30.0, translate=(0.2, 0.1), scale=(0.7, 1.2), shear=9.0
    ),
}


@pytest.mark.parametrize("name", CROPS)
def test_image_and_target_lie_at_one_place(name: str) -> None:
    found = batches(Drawn(TargetKind.PIXELS), (LABEL_MAP,), CROPS[name])
    image = np.concatenate([batch["image"] for batch in found])[..., 0].astype(float)
    classes = np.concatenate([batch[LABEL_MAP] for batch in found])
    known = classes != IGNORED
    assert known.mean() > 0.4
    # Between two colours an image has a mean of them, and a map one of the two.
    alike = np.abs(image - 40 * classes) < 20
    assert alike[known].mean() > 0.8
    assert (image[~known] < 200).all()
    mirrored = np.abs(image - 40 * classes[:, :, ::-1]) < 20
    assert mirrored[known & known[:, :, ::-1]].mean() < 0.5


@pytest.mark.parametrize("name", CROPS)
def test_images_are_those_of_batches_without_targets(name: str) -> None:
    source = Drawn(TargetKind.PIXELS)
    for plain, dense in zip(
        batches(source, ("label",), CROPS[name]),
        batches(source, ("label", LABEL_MAP), CROPS[name]),
        strict=True,
    ):
        for key in ("image", "label", "index"):
            np.testing.assert_array_equal(plain[key], dense[key], err_msg=key)


def test_all_kinds_of_targets_are_of_one_place() -> None:
    (pixels,) = batches(Drawn(TargetKind.PIXELS), (LABEL_MAP, *ALL_SEGMENTS), count=1)
    (depth,) = batches(Drawn(TargetKind.DEPTH), (DEPTH,), count=1)
    (segments,) = batches(Drawn(TargetKind.SEGMENTS), (LABEL_MAP, *ALL_SEGMENTS), count=1)
    classes = pixels[LABEL_MAP]
    np.testing.assert_array_equal(depth[DEPTH], classes + 1)  # 0 where it is ignored
    things = np.where(classes > 0, classes, IGNORED)
    np.testing.assert_array_equal(segments[LABEL_MAP], things)
    for batch, expected in ((pixels, classes), (segments, things)):
        masks = np.unpackbits(batch[SEGMENTS], axis=-1, count=SIZE[1]).astype(bool)
        seen = np.full(classes.shape, IGNORED)
        for row, number in np.argwhere(batch[SEGMENT_CLASS] >= 0):
            seen[row][masks[row, number]] = batch[SEGMENT_CLASS][row, number]
        np.testing.assert_array_equal(seen, expected)
        assert masks.any((2, 3)).sum() == (batch[SEGMENT_CLASS] >= 0).sum()
    shapes = {key: (each.shape, each.dtype.name) for key, each in pixels.items()}
    assert shapes[LABEL_MAP] == ((8, *SIZE), "int16")
    assert shapes[SEGMENTS] == ((8, 100, 32, 3), "uint8")
    assert shapes[SEGMENT_CLASS] == ((8, 100), "int32")
    assert (depth[DEPTH].shape, depth[DEPTH].dtype.name) == ((8, *SIZE), "float32")


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    fields = (*ALL_SEGMENTS,)
    settings = {"redraws": 3, "min_visible": 0.8}
    whole = batches(Drawn(TargetKind.SEGMENTS), fields, num_threads=3, **settings)
    late = batches(Drawn(TargetKind.SEGMENTS), fields, start=2, count=1, num_threads=1, **settings)
    part = batches(Drawn(TargetKind.SEGMENTS), fields, rows=np.array([1, 2, 6]), **settings)
    for key in ("image", *fields):
        np.testing.assert_array_equal(whole[2][key], late[0][key], err_msg=key)
        np.testing.assert_array_equal(whole[1][key][[1, 2, 6]], part[1][key], err_msg=key)


def test_a_crop_that_leaves_nothing_is_drawn_again() -> None:
    transform = TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.02, 0.05))
    source = Drawn(TargetKind.SEGMENTS)
    kept = batches(source, ALL_SEGMENTS, transform)
    empty = [(batch[SEGMENT_CLASS] < 0).all(1) for batch in kept]
    assert 3 < np.sum(empty) < 21, "nothing to be seen here"
    again = batches(source, ALL_SEGMENTS, transform, redraws=50)
    for before, after, was_empty in zip(kept, again, empty, strict=True):
        assert (after[SEGMENT_CLASS] >= 0).any(1).all()
        changed = (before["image"] != after["image"]).any((1, 2, 3))
        assert not changed[~was_empty].any()


def test_segments_without_room_are_counted() -> None:
    source = Drawn(TargetKind.SEGMENTS)
    all_of, some = (
        batches(source, ALL_SEGMENTS, max_segments=most, count=1)[0] for most in (100, 2)
    )
    count = (all_of[SEGMENT_CLASS] >= 0).sum(1)
    assert (all_of[SEGMENTS_CUT] == 0).all()
    assert some[SEGMENTS].shape[1] == 2
    np.testing.assert_array_equal(some[SEGMENTS_CUT], np.maximum(count - 2, 0))
    assert some[SEGMENTS_CUT].any()


def test_boxes_without_masks_are_filled() -> None:
    plain = TransformConfig(crop=Crop.RESIZE)
    (found,) = batches(Drawn(TargetKind.SEGMENTS, boxes=True), ALL_SEGMENTS, plain, count=1)
    masks = np.unpackbits(found[SEGMENTS], axis=-1, count=SIZE[1]).astype(bool)
    there = found[SEGMENT_CLASS] >= 0
    assert there.any(1).all()
    assert masks[there].min(1).max(1).all(), "each box here reaches from top to bottom"


def test_a_padded_last_batch_knows_nothing_of_its_padding() -> None:
    views = data.one_view(TransformConfig(crop=Crop.RESIZE), SIZE, 3)
    with data.eval_batches(
        Drawn(TargetKind.PIXELS, 3), views, fields=(LABEL_MAP, *ALL_SEGMENTS), batch_size=4
    ) as stream:
        (batch,) = stream
    assert (batch[LABEL_MAP][3] == IGNORED).all()
    assert (batch[SEGMENT_CLASS][3] == -1).all()
    assert (batch[LABEL_MAP][:3] >= 0).all()
    assert batch["mask"].tolist() == [1, 1, 1, 0]


class Odd(Drawn):
    """Has a target of another size for one of its images."""

    def target(self, index: int) -> PixelTarget:
        found = super().target(index)
        if index != 7:
            return found
        return dataclasses.replace(found, size=(5, 5), label_map=np.zeros((5, 5), np.int16))


def test_a_target_of_another_size_is_refused_or_replaced() -> None:
    source = Odd(TargetKind.PIXELS)
    with pytest.raises(DataError, match=r"drawing 7 is \d+x\d+, its target 5x5"):
        batches(source, (LABEL_MAP,))
    found = batches(source, (LABEL_MAP,), max_broken=1)
    broken = np.concatenate([batch["broken"] for batch in found])
    assert set(broken) == {-1, 7}


@pytest.mark.parametrize(
    ("kind", "fields", "transform", "text"),
    [
        (TargetKind.NONE, (LABEL_MAP,), RANDOM, "has images without targets of their pixels"),
        (TargetKind.PIXELS, (DEPTH,), RANDOM, "has a class of each pixel; .* a depth"),
        (TargetKind.DEPTH, ALL_SEGMENTS, RANDOM, "has a depth of each pixel; .* segments"),
        (
            TargetKind.PIXELS,
            (LABEL_MAP,),
            TransformConfig(auto_augment="randaug(2,10)"),
            "moves pixels .Rotate.",
        ),
    ],
)
def test_what_no_target_can_follow_is_refused(
    kind: TargetKind, fields: tuple[str, ...], transform: TransformConfig, text: str
) -> None:
    with pytest.raises(UserError, match=text) as error:
        batches(Drawn(kind), fields, transform)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("policy", ["3-augment", "dino-blur0.5-solarize0.5"])
def test_colours_may_change(policy: str) -> None:
    transform = dataclasses.replace(RANDOM, auto_augment=policy, color_jitter=0.3)
    (plain,) = batches(Drawn(TargetKind.PIXELS), (LABEL_MAP,), count=1)
    (found,) = batches(Drawn(TargetKind.PIXELS), (LABEL_MAP,), transform, count=1)
    np.testing.assert_array_equal(found[LABEL_MAP], plain[LABEL_MAP])
    assert (found["image"] != plain["image"]).any()
