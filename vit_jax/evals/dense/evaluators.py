# SPDX-License-Identifier: Apache-2.0
"""Evaluators of classes of pixels, of things and stuff, and of objects, at images' own sizes.

Each walks its split, compares what is found with `Source.target`, and adds up images in the order
of the split, so that neither devices nor processes change a metric.
"""

import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Num, UInt8

from vit_jax.data import reading, target_of
from vit_jax.data.images import bands
from vit_jax.data.images.decode import decode
from vit_jax.data.targets import Target
from vit_jax.devices import hosts
from vit_jax.errors import UserError
from vit_jax.evals.base import EvalContext, Folder, Predictors
from vit_jax.evals.config import EvalConfig, InstanceEval, PanopticEval, SegmentationEval
from vit_jax.evals.dense import average_precision, miou, panoptic
from vit_jax.evals.dense import decode as decoding
from vit_jax.evals.dense.average_precision import Matches
from vit_jax.evals.dense.decode import Instances, Windows
from vit_jax.evals.dense.walk import SeenImage, walk
from vit_jax.figures import masks as pictures
from vit_jax.figures.contact_sheet import Tile, render
from vit_jax.process import escapes
from vit_jax.storage import files
from vit_jax.trees import PyTree

_SHOWN = 8  # images of the split, the first ones, on a report's sheet
_FLOATS = ("iou", "pq", "sq", "rq")
_SURE = 0.5  # the score above which a found object is drawn


class ImageCounts(NamedTuple):
    """What one image adds to a metric.

    Attributes:
        index: of the image in the split.
        numbers: JSON.
        pictures: of the image, the truth and what was found; () of most images.
    """

    index: int
    numbers: Any
    pictures: tuple[UInt8[np.ndarray, "H W 3"], ...] = ()


class _Dense:
    """What the evaluators share: a walk over the split under ""."""

    columns: tuple[str, ...]

    def __init__(self, cfg: Any, context: EvalContext) -> None:
        self.cfg, self.context, self.source = cfg, context, context.sources[""]
        self.names = tuple(self.source.class_names)
        self.things: tuple[bool, ...] = getattr(self.source, "things", ())

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return the metrics and num_examples; with `cfg.report`, write files to `report_dir`.

        Raises UserError: an image or a target that cannot be read, classes that are not the
        model's, or nothing to measure.
        """
        context, cfg, data_cfg = self.context, self.cfg, self.context.data
        rules = reading(data_cfg)
        drawn = _SHOWN if cfg.report and report_dir is not None else 0

        def read(index: int) -> Num[np.ndarray, "H W C"]:
            name = self.source.example_id(index)
            try:
                encoded = self.source.read(index)["image"]
                return decode(encoded, context.channels, rules, name=lambda: name)
            except ValueError as error:
                raise UserError(f"{self.source.name}: {name} cannot be read: {error}") from None

        def finish(seen: SeenImage, predicted: list[Any]) -> ImageCounts:
            target = target_of(self.source, seen.index)
            image = bands.picture(seen.image, rules.bands_shown) if rules.bands else seen.image
            return self.compare(seen, target, predicted, image if seen.index < drawn else None)

        dtype = np.dtype(rules.dtype.value if rules.bands else np.uint8)
        found = walk(
            range(len(self.source)),
            read,
            self.cut,
            predictors[cfg.predictor],
            variables,
            finish,
            window=jax.ShapeDtypeStruct((*context.image_size, context.channels), dtype),
            mesh=context.mesh,
            batch_size=cfg.batch_size or data_cfg.batch_size,
            num_threads=data_cfg.num_threads,
            tick=context.tick,
        )
        gathered = hosts.gather([[each.index, each.numbers] for each in found])
        rows = {index: numbers for each in gathered for index, numbers in each}
        metrics, table = self.total([rows[i] for i in range(len(self.source))])
        if drawn and jax.process_index() == 0:
            shown = [each for each in found if each.pictures]
            self.report(Path(cast(str, report_dir)), table, shown, of)
        return {**metrics, "num_examples": float(len(self.source))}

    def cut(self, image: Num[np.ndarray, "H W C"]) -> Windows:
        """Bring a whole image to the model's size."""
        return decoding.padded(image, self.context.image_size, self.cfg.transform.resize)

    def compare(
        self, seen: SeenImage, target: Target, predicted: list[Any], image: np.ndarray | None
    ) -> ImageCounts:
        """Compare what is found in an image with its target; draw it where an image is given."""
        raise NotImplementedError

    def total(self, rows: list[Any]) -> tuple[dict[str, float], list[tuple[Any, ...]]]:
        """Return the metrics of all images' numbers, in order, and the rows of `columns`."""
        raise NotImplementedError

    def report(
        self, folder: Path, table: list[tuple[Any, ...]], shown: Sequence[ImageCounts], of: str
    ) -> None:
        """Write per_class.csv and figures/masks.png."""
        folder.mkdir(parents=True, exist_ok=True)
        text = io.StringIO()
        rows = [[_cell(value) for value in row] for row in table]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows(
            [escapes.cell(x) for x in row] for row in [("class", *self.columns), *rows]
        )
        files.write(folder / "per_class.csv", text.getvalue().encode())
        if not shown:
            return
        captions = ("image", "truth", "found")
        tiles = [
            [Tile(x, caption) for x, caption in zip(each.pictures, captions, strict=True)]
            for each in shown
        ]
        (folder / "figures").mkdir(exist_ok=True)
        title = ", ".join(filter(None, (self.source.name, of)))
        files.write(folder / "figures" / "masks.png", render(tiles, title))

    def _check_count(self, count: int) -> None:
        if count != len(self.names):
            raise UserError(
                f"{self.source.name} has {len(self.names)} classes, and the model tells {count} "
                "apart; evaluate on data of the model's classes"
            )

    def _checked(self, predicted: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        classes, masks = predicted[0]
        self._check_count(classes.shape[-1] - 1)
        return classes, masks


class PixelClasses(_Dense):
    """Evaluator of miou and accuracy; `cfg` is a `SegmentationEval`."""

    columns = ("iou", "recall", "pixels")

    def cut(self, image: Num[np.ndarray, "H W C"]) -> Windows:
        """Lay windows over an image."""
        size, cfg = self.context.image_size, self.cfg
        return decoding.covering(image, size, cfg.transform.resize, cfg.stride)

    def compare(
        self, seen: SeenImage, target: Target, predicted: list[Any], image: np.ndarray | None
    ) -> ImageCounts:
        """Count the pixels by true and found class."""
        self._check_count(len(predicted[0]))
        truth = target.label_map
        assert truth is not None, "the source was opened for classes of pixels"
        found = decoding.class_map(predicted, seen.windows, target.size)
        counts = miou.confusion(truth, found, len(self.names))
        cells = np.flatnonzero(counts)
        numbers = [cells.tolist(), counts.ravel()[cells].tolist()]
        drawn = () if image is None else _triple(image, truth, np.where(truth < 0, -1, found))
        return ImageCounts(seen.index, numbers, drawn)

    def total(self, rows: list[Any]) -> tuple[dict[str, float], list[tuple[Any, ...]]]:
        """Return the metrics, and iou, recall and number of pixels of each class."""
        count = len(self.names)
        counts = np.zeros(count * count, np.int64)
        for cells, numbers in rows:
            counts[cells] += np.asarray(numbers, np.int64)
        counts = counts.reshape(count, count)
        if not counts.any():
            raise UserError(f"{self.source.name} has no pixel of a class to evaluate on")
        found = miou.overlap(counts)
        each = zip(found.iou, found.recall, counts.sum(axis=1).tolist(), strict=True)
        table = [(name, *row) for name, row in zip(self.names, each, strict=True)]
        return {"miou": found.miou, "accuracy": found.accuracy}, table


class Segmented(_Dense):
    """Evaluator of panoptic quality; `cfg` is a `PanopticEval`."""

    columns = ("pq", "sq", "rq", "matched", "false", "missed")

    def compare(
        self, seen: SeenImage, target: Target, predicted: list[Any], image: np.ndarray | None
    ) -> ImageCounts:
        """Match the segments of an image."""
        classes, masks = self._checked(predicted)
        found = decoding.panoptic(
            classes,
            masks,
            seen.windows,
            target.size,
            self.things,
            self.cfg.score,
            self.cfg.overlap,
        ).found
        truth = panoptic.of_target(target)
        counts = np.stack(panoptic.count(truth, found, len(self.names)), axis=1)
        there = np.flatnonzero(counts.any(axis=1))
        drawn = () if image is None else _triple(image, *map(_numbered, (truth, found)))
        return ImageCounts(seen.index, [there.tolist(), counts[there].tolist()], drawn)

    def total(self, rows: list[Any]) -> tuple[dict[str, float], list[tuple[Any, ...]]]:
        """Return the metrics, of things and stuff too where there are both, and of each class."""
        things = np.array(self.things or (True,) * len(self.names))
        sums = [[[] for _ in range(4)] for _ in self.names]
        for there, numbers in rows:
            for k, row in zip(there, numbers, strict=True):
                for values, value in zip(sums[k], row, strict=True):
                    values.append(value)
        # fsum rounds once, whatever the order.
        totals = np.array([[math.fsum(values) for values in each] for each in sums])
        quality = panoptic.quality(panoptic.SegmentCounts(*totals.T))
        if np.isnan(quality.pq).all():
            raise UserError(f"{self.source.name} has no segment to evaluate on")
        groups = {"": None, "_things": things, "_stuff": ~things}
        metrics = {}
        for group, chosen in groups.items():
            if not group or not things.all():
                values = zip(("pq", "sq", "rq"), quality.mean(chosen), strict=True)
                metrics |= {f"{name}{group}": x for name, x in values if not math.isnan(x)}
        each = zip(*quality, *totals[:, 1:].T.astype(int), strict=True)
        return metrics, [(name, *row) for name, row in zip(self.names, each, strict=True)]


class ObjectScores(_Dense):
    """Evaluator of the average precision of masks and boxes; `cfg` is an `InstanceEval`."""

    @property
    def columns(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return ("mask_ap", "box_ap", "objects") if self.cfg.masks else ("box_ap", "objects")

    def compare(
        self, seen: SeenImage, target: Target, predicted: list[Any], image: np.ndarray | None
    ) -> ImageCounts:
        """Give the found objects of an image to the true ones, class by class."""
        found = decoding.instances(
            *self._checked(predicted), seen.windows, target.size, self.cfg.top
        )
        true = _objects(target)
        if self.cfg.masks and true.masks is None:
            field = "masks=False"
            raise UserError(f"{self.source.name} has boxes alone; set {field} of the evaluation")
        rows = []
        for k in np.union1d(found.classes, true.classes).tolist():
            own, real = np.flatnonzero(found.classes == k), np.flatnonzero(true.classes == k)
            each = [k, int((~true.crowd[real]).sum())]
            for matched in self._matches(found, own, true, real):
                each.append(_packed(matched))
            rows.append(each)
        drawn = () if image is None else _drawn(image, true, found)
        return ImageCounts(seen.index, rows, drawn)

    def _matches(
        self, found: Instances, own: np.ndarray, true: "_TrueObjects", real: np.ndarray
    ) -> list[Matches]:
        """Return the matches of masks, if they are measured, and of boxes."""
        crowd, scores = true.crowd[real], found.scores[own]
        boxes = found.boxes[own], true.boxes[real]
        areas = [average_precision.box_areas(each) for each in boxes]
        results = []
        if true.masks is not None:
            masks = found.masks[own], true.masks[real]
            sizes = [each.sum(axis=(1, 2)) for each in masks]
            areas[1] = sizes[1].astype(np.float64)  # COCO's area of an object is its mask's
            if self.cfg.masks:
                shared = average_precision.mask_overlaps(*masks, crowd)
                results.append(average_precision.matches(shared, scores, sizes[0], sizes[1], crowd))
        overlaps = average_precision.box_overlaps(*boxes, crowd)
        return [*results, average_precision.matches(overlaps, scores, areas[0], areas[1], crowd)]

    def total(self, rows: list[Any]) -> tuple[dict[str, float], list[tuple[Any, ...]]]:
        """Return COCO's numbers that there are, and the AP and objects of each class."""
        kinds = ("mask_", "box_") if self.cfg.masks else ("box_",)
        matched = {kind: [[] for _ in self.names] for kind in kinds}
        objects = np.zeros(len(self.names), np.int64)
        for row in rows:
            for k, count, *packed in row:
                objects[k] += count
                for kind, each in zip(kinds, packed, strict=True):
                    matched[kind][k].append(_unpacked(each))
        if not objects.any():
            raise UserError(f"{self.source.name} has no object to evaluate on")
        curves = {kind: average_precision.precision(each) for kind, each in matched.items()}
        metrics = {}
        for kind, curve in curves.items():
            metrics |= {k: x for k, x in curve.summary(kind).items() if not math.isnan(x)}
        each = zip(*(c.of_classes() for c in curves.values()), objects.tolist(), strict=True)
        return metrics, [(name, *row) for name, row in zip(self.names, each, strict=True)]


class _TrueObjects(NamedTuple):
    """The true objects of an image."""

    boxes: np.ndarray  # float32 [n, 4]
    masks: np.ndarray | None  # bool [n, H, W]
    classes: np.ndarray
    crowd: np.ndarray


def _objects(target: Target) -> _TrueObjects:
    classes = np.zeros(0, np.int32) if target.classes is None else target.classes
    boxes = target.boxes
    if boxes is None:
        masks = () if target.masks is None else target.masks
        boxes = np.array([decoding.box_of(mask) for mask in masks], np.float32).reshape(-1, 4)
    crowd = np.zeros(len(classes), bool) if target.crowd is None else target.crowd
    return _TrueObjects(boxes, target.masks, classes, crowd)


def _packed(found: Matches) -> list[Any]:
    """Write matches as JSON: flags as hexadecimal digits of their bits."""
    flags = np.packbits(np.stack([found.hit, found.ignored])).tobytes().hex()
    return [found.scores.tolist(), flags, found.positives.tolist()]


def _unpacked(packed: list[Any]) -> Matches:
    scores, flags, positives = packed
    areas, thresholds = len(average_precision.AREAS), len(average_precision.THRESHOLDS)
    shape = (2, areas, thresholds, len(scores))
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(flags), np.uint8))
    hit, ignored = bits[: math.prod(shape)].reshape(shape).astype(bool)
    return Matches(np.asarray(scores, np.float64), hit, ignored, np.asarray(positives))


def _triple(
    image: np.ndarray, truth: np.ndarray, found: np.ndarray
) -> tuple[UInt8[np.ndarray, "H W 3"], ...]:
    both = (pictures.over(image, numbers) for numbers in (truth, found))
    return (pictures.as_rgb(image), *both)


def _numbered(segments: panoptic.SegmentMap) -> np.ndarray:
    """Return the class of each pixel, for a picture; -1 is none."""
    return np.concatenate([[-1], segments.classes])[segments.ids]


def _drawn(
    image: np.ndarray, true: _TrueObjects, found: Instances
) -> tuple[UInt8[np.ndarray, "H W 3"], ...]:
    sure = found.scores > _SURE
    kept = Instances(*(values[sure] for values in found))
    return (
        pictures.as_rgb(image),
        objects_drawn(image, true.masks, true.boxes, true.classes),
        objects_drawn(image, kept.masks, kept.boxes, kept.classes),
    )


def objects_drawn(
    image: Num[np.ndarray, "H W C"],
    masks: np.ndarray | None,
    boxes: np.ndarray,
    classes: np.ndarray,
) -> UInt8[np.ndarray, "H W 3"]:
    """Draw objects over their image: masks in colours of their own, boxes in their classes'."""
    numbers = np.full(image.shape[:2], -1, np.int32)
    if masks is not None:
        for number in reversed(range(len(masks))):
            numbers[masks[number]] = number  # the likeliest on top
    colours = [pictures.colour(int(k)) for k in classes]
    return pictures.framed(pictures.over(image, numbers), boxes, colours)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.4f}"
    return value


_KINDS = {SegmentationEval: PixelClasses, PanopticEval: Segmented, InstanceEval: ObjectScores}


def create(cfg: EvalConfig, context: EvalContext) -> _Dense:
    """Build the evaluator of a split."""
    return _KINDS[type(cfg)](cfg, context)
