# SPDX-License-Identifier: Apache-2.0
"""Evaluators of pixels, segments and objects, by predictors that read the answer off it."""

import csv
import functools
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_as
from vit_jax import evals
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.data.sources.base import Labelled
from vit_jax.data.targets import PixelTarget, TargetKind
from vit_jax.devices.sharding import MeshConfig, make_mesh
from vit_jax.evals import EvalContext, InstanceEval, PanopticEval, SegmentationEval

WHOLE = TransformConfig(crop=Crop.RESIZE)
NAMES = ("sky", "dog", "cat")
GREYS = np.array([0, 100, 200])


class Drawn(Labelled):
    """Images of three grey areas, the class of which is the area's number, and a dot of void."""

    name = "drawn"
    class_names: tuple[str, ...] = NAMES
    things: tuple[bool, ...] = (False, True, True)
    labels = None

    def __init__(self, kind: TargetKind, count: int = 5) -> None:
        self.target_kind = kind
        self.count = count

    def digest(self) -> str:
        return "0" * 16

    def __len__(self) -> int:
        return self.count

    def example_id(self, index: int) -> str:
        return f"image {index}"

    def _map(self, index: int) -> np.ndarray:
        height, width = 32, (32, 48, 40)[index % 3]
        found = np.zeros((height, width), np.int16)
        found[8:24, 8:20] = 1
        found[16:32, 24:32] = 2
        return found

    def read(self, index: int) -> dict[str, Any]:
        out = io.BytesIO()
        grey = GREYS[self._map(index)].astype(np.uint8)
        Image.fromarray(np.repeat(grey[..., None], 3, axis=2)).save(out, "png")
        return {"image": out.getvalue()}

    def target(self, index: int) -> PixelTarget:
        label_map = self._map(index)
        label_map[0, 0] = -1
        if self.target_kind is TargetKind.PIXELS:
            return PixelTarget(size=label_map.shape, label_map=label_map)
        masks = np.stack([label_map == k for k in range(3)])
        classes = np.arange(3, dtype=np.int32)
        return PixelTarget(size=label_map.shape, masks=masks, classes=classes)


def _is(batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return [B, 3, h, w], how near each pixel is to each class's grey."""
    grey = batch["image"][..., 0].astype(jnp.float32)
    return 10 - jnp.abs(grey[:, None] - jnp.asarray(GREYS, jnp.float32)[None, :, None, None])


def _segmentation(variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
    return _is(batch) * variables["scale"]


def _segments(variables: Any, batch: Mapping[str, jax.Array]) -> Any:
    masks = _is(batch)
    classes = 6 * jnp.eye(3, 4) * variables["scale"]
    return jnp.broadcast_to(classes[None], (len(masks), 3, 4)), masks


PREDICTORS: Any = {"segmentation": _segmentation, "segments": _segments}


def _run(cfg: Any, devices: int, folder: Path | None = None, **more: Any) -> dict[str, float]:
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    kind = TargetKind(cfg.needs_target)
    context = EvalContext(
        data=DataConfig(batch_size=4, num_threads=2),
        sources={"": more.get("source", Drawn(kind))},
        image_size=(32, 32),
        channels=3,
        mesh=mesh,
        name="val",
    )
    variables = {"scale": jnp.ones(())}
    return evals.create(cfg, context).run(PREDICTORS, variables, folder, "the last")


@functools.cache
def _metrics(kind: type, devices: int) -> dict[str, float]:
    return _run(kind(transform=WHOLE), devices)


def test_what_the_image_says_is_found() -> None:
    assert _metrics(SegmentationEval, 1) == {"miou": 1.0, "accuracy": 1.0, "num_examples": 5.0}
    # An image of the model's size is found exactly: the void pixel is left out of the union.
    # A wider image is made smaller, and its edges are less exact.
    exact = _run(PanopticEval(transform=WHOLE), 1, source=Drawn(TargetKind.SEGMENTS, 1))
    found = _metrics(PanopticEval, 1)
    for name in ("pq", "pq_things", "pq_stuff", "rq"):
        assert exact[name] == 1.0
        assert 0.8 < found[name] <= 1
    exact = _run(InstanceEval(transform=WHOLE), 1, source=Drawn(TargetKind.SEGMENTS, 1))
    assert exact["mask_ap"] == exact["box_ap"] == pytest.approx(1.0)
    found = _metrics(InstanceEval, 1)
    assert found["mask_ap50"] == found["box_ap50"] == 1.0
    assert {"mask_ar100", "mask_ap_medium", "box_ap75"} < set(found)


@pytest.mark.parametrize("kind", [SegmentationEval, PanopticEval, InstanceEval])
def test_devices_change_nothing(kind: type) -> None:
    assert _metrics(kind, 8) == _metrics(kind, 1)


def test_what_is_wrong_counts() -> None:
    class Shifted(Drawn):
        def target(self, index: int) -> PixelTarget:
            found = Drawn.target(self, index)
            if found.label_map is not None:
                found.label_map[found.label_map == 2] = 1
                return found
            assert found.masks is not None
            found.masks[1] = np.roll(found.masks[1], 8, axis=1)
            found.masks[0] &= ~found.masks[1]
            return found

    pixels = _run(SegmentationEval(transform=WHOLE), 1, source=Shifted(TargetKind.PIXELS, 1))
    # 128 of the 320 pixels of the dog are found to be a cat, which is nowhere.
    assert pixels["miou"] == pytest.approx((1 + 192 / 320 + 0) / 3)
    assert pixels["accuracy"] == pytest.approx(1 - 128 / (32 * 32 - 1))
    wrong = Shifted(TargetKind.SEGMENTS, 1)
    # The dog's mask shares a third of its pixels with the true one: IoU 1 / 5.
    segments = _run(PanopticEval(transform=WHOLE), 1, source=wrong)
    assert segments["pq_things"] == pytest.approx(0.5)
    objects = _run(InstanceEval(transform=WHOLE, masks=False), 1, source=wrong)
    assert objects["box_ap50"] == pytest.approx(2 / 3, abs=1e-6)
    assert "mask_ap" not in objects


def test_reports(tmp_path: Path) -> None:
    for kind, head in ((SegmentationEval, "iou"), (PanopticEval, "pq"), (InstanceEval, "mask_ap")):
        _run(kind(transform=WHOLE, report=True), 1, tmp_path / head)
        rows = list(csv.DictReader((tmp_path / head / "per_class.csv").open()))
        assert [row["class"] for row in rows] == list(NAMES)
        assert all(0.4 < float(row[head]) <= 1 for row in rows)
        with Image.open(tmp_path / head / "figures" / "masks.png") as picture:
            assert picture.width > 90
            assert picture.height > 150


def test_refusals() -> None:
    class Other(Drawn):
        class_names = ("a", "b")

    for kind in (SegmentationEval, PanopticEval):
        with refused_as(("evals.dense.evaluators._Dense._check_count", "")):
            _run(kind(transform=WHOLE), 1, source=Other(TargetKind(kind.needs_target)))
    with refused_as(("evals.config._check_whole", "evals.val.transform.crop")):
        SegmentationEval().check("evals.val")

    class Empty(Drawn):
        def target(self, index: int) -> PixelTarget:
            size = self._map(index).shape
            masks, classes = np.zeros((0, *size), bool), np.zeros(0, np.int32)
            return PixelTarget(
                size=size, label_map=np.full(size, -1, np.int16), masks=masks, classes=classes
            )

    kinds = {
        SegmentationEval: "PixelClasses",
        PanopticEval: "Segmented",
        InstanceEval: "ObjectScores",
    }
    for kind, name in kinds.items():
        cfg = kind(transform=WHOLE, **({"score": 0.999} if kind is PanopticEval else {}))
        with refused_as((f"evals.dense.evaluators.{name}.total", "")):
            _run(cfg, 1, source=Empty(TargetKind(kind.needs_target), 1))
