# SPDX-License-Identifier: Apache-2.0
"""What a model says of the pixels of image files: masks, objects and depths, as files of a folder.

Classes are PNGs of a palette (masks/), segments PNGs and a JSON of COCO's panoptic form (panoptic/,
panoptic.json), objects COCO's instances with run lengths and boxes (instances.json), depths PNGs of
16 bits (depth/) with the unit of each in depth.json. overlays/ has a picture of each image, and
images.csv says by which name an image has its files.
"""

import contextlib
import csv
import dataclasses
import enum
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax
import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image

from vit_jax.data.images import bands
from vit_jax.data.sources.dense.raster import packed_text
from vit_jax.data.targets import TargetKind
from vit_jax.devices import hardware, sharding
from vit_jax.errors import UserError, shown, unknown
from vit_jax.evals.config import SegmentationEval
from vit_jax.evals.dense import decode
from vit_jax.evals.dense.evaluators import objects_drawn
from vit_jax.evals.dense.walk import SeenImage, walk
from vit_jax.figures import contact_sheet
from vit_jax.figures import masks as pictures
from vit_jax.inference import dense, depth
from vit_jax.inference.evaluate import placed
from vit_jax.inference.images import read_image
from vit_jax.inference.trained import Trained
from vit_jax.process.escapes import cell, terminal
from vit_jax.storage import files

_MOST = 65535
_PER_UNIT = 1000  # of depths in metres a PNG has millimetres


class PixelTask(enum.StrEnum):
    """What is asked of the pixels."""

    CLASSES = "classes"  # the class of each pixel
    SEGMENTS = "segments"  # things and stuff
    OBJECTS = "objects"  # their masks and boxes
    DEPTH = "depth"


# Above which they are kept: of segments the authors' threshold.
SCORES = {PixelTask.OBJECTS: 0.5, PixelTask.SEGMENTS: decode.SCORE}


class PixelAnswer(NamedTuple):
    """What is found in an image, in numbers; or what is wrong with it.

    Attributes:
        file: the image.
        found: (name, share of the pixels) of classes, the largest first; (name, score) of segments
            and objects, the likeliest first; ("least", x) and ("greatest", x) of depths.
        error: "" if it was read.
    """

    file: str
    found: list[tuple[str, float]]
    error: str = ""

    def told(self, task: PixelTask, most: int) -> str:
        """Return one line that names the first `most` things found and counts the others."""
        unit = ".3f" if task is PixelTask.DEPTH else ".0%"
        said = [f"{terminal(name)} {x:{unit}}" for name, x in self.found[:most]]
        more = len(self.found) - len(said)
        return ", ".join([*said, *([f"{more:,} more"] if more else [])]) or "nothing"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelSettings:
    """How predictions are made and kept.

    Attributes:
        task: None is what the model was trained for.
        stuff: names of the classes of stuff, for segments; the others are things.
        score: above which objects and segments are kept; None is `SCORES`'s.
        batch_size: windows at once.
        num_threads: that decode images and write files.
    """

    task: PixelTask | None = None
    stuff: tuple[str, ...] = ()
    score: float | None = None
    batch_size: int = 8
    num_threads: int = 4


def task_of(trained: Trained, asked: PixelTask | None = None) -> PixelTask:
    """Return what is asked of a model, by default what it was trained for.

    Raises UserError: the model does not say that.
    """
    cfg: Any = dense.objective(trained).cfg
    can = [PixelTask.DEPTH] if "depth" in cfg.predicts else [PixelTask.CLASSES]
    if "segments" in cfg.predicts:
        can += [PixelTask.SEGMENTS, PixelTask.OBJECTS]
        if asked is None and cfg.pixel_target == TargetKind.SEGMENTS:
            return PixelTask.OBJECTS
    if asked is not None and asked not in can:
        raise UserError(f"{trained.ref} says no {asked} of pixels; choose {', '.join(can)}")
    return asked or can[0]


def write(
    trained: Trained, images: Sequence[str], out: Path, settings: PixelSettings
) -> list[PixelAnswer]:
    """Predict the pixels of image files and write them into a folder; returns one for each image.

    Raises UserError: the model does not say what is asked, or a file cannot be written.
    """

    def store(name: str, content: bytes) -> None:
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, content)

    def keep(name: str, drawn: UInt8[np.ndarray, "H W 3"]) -> None:
        store(f"overlays/{name}.jpg", _jpeg(drawn))

    with files.refused(f"--out={out}"):
        return _predicted(trained, images, settings, store, keep)


def overlays(
    trained: Trained, images: Sequence[str], settings: PixelSettings
) -> list[tuple[PixelAnswer, UInt8[np.ndarray, "H W 3"] | None]]:
    """Return what is predicted of image files, each drawn over the image, None of a broken one.

    Raises UserError: the model does not say what is asked.
    """
    drawn: dict[str, UInt8[np.ndarray, "H W 3"]] = {}
    answers = _predicted(trained, images, settings, lambda name, content: None, drawn.__setitem__)
    return list(zip(answers, map(drawn.get, _unique(images)), strict=True))


def make_drawn(
    trained: Trained,
) -> Callable[
    [Num[np.ndarray, "H W C"]], tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]
]:
    """Return image -> what is found in it, as in `PixelAnswer`, and that drawn over the image.

    Raises UserError: a model that says nothing of pixels.
    """
    writer = _WRITERS[task_of(trained)](trained, lambda name, content: None, PixelSettings())
    predict = jax.jit(dense.predictors(trained)[writer.predictor])

    def drawn(
        image: Num[np.ndarray, "H W C"],
    ) -> tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]:
        shown, rules = image, trained.reading
        if rules.bands:
            shown = bands.picture(image, rules.bands_shown)
        if writer.task is PixelTask.DEPTH:
            return writer.take(_alone(0, image), [], "image", shown)
        windows = writer.cut(image)
        # One window after another: however many there are, one program runs.
        found = [predict(trained.variables, {"image": each[None]}) for each in windows.pixels]
        predicted = [jax.tree.map(lambda x: np.asarray(x)[0], each) for each in found]
        return writer.take(SeenImage(0, image, windows), predicted, "image", shown)

    return drawn


Store = Callable[[str, bytes], None]  # takes a file's name in the folder and its content


@hardware.explained("lower the batch size, --batch_size=N")
def _predicted(
    trained: Trained,
    images: Sequence[str],
    settings: PixelSettings,
    store: Store,
    keep: Callable[[str, UInt8[np.ndarray, "H W 3"]], None],
) -> list[PixelAnswer]:
    """Predict images; their files go to `store`, what is drawn over them, by name, to `keep`."""
    task = task_of(trained, settings.task)
    writer = _WRITERS[task](trained, store, settings)
    names = _unique(images)
    errors: dict[int, str] = {}

    def read(index: int) -> Num[np.ndarray, "H W C"]:
        try:
            return read_image(images[index], trained.channels, trained.reading)
        except UserError as error:
            errors[index] = str(error)
            return np.zeros((1, 1, trained.channels), np.uint8)

    def finish(seen: SeenImage, predicted: list[Any]) -> PixelAnswer:
        file = images[seen.index]
        if seen.index in errors:
            return PixelAnswer(file, [], errors[seen.index])
        rules = trained.reading
        image = bands.picture(seen.image, rules.bands_shown) if rules.bands else seen.image
        found, drawn = writer.take(seen, predicted, names[seen.index], image)
        keep(names[seen.index], drawn)
        return PixelAnswer(file, found)

    if task is PixelTask.DEPTH:  # whose images have sizes of their own
        answers = [finish(_alone(i, read(i)), []) for i in range(len(images))]
    else:
        devices = jax.local_devices()[: max(min(settings.batch_size, len(images)), 1)]
        mesh = sharding.make_mesh(sharding.MeshConfig(), devices)
        dtype = np.dtype(trained.reading.dtype.value if trained.reading.bands else np.uint8)
        answers = walk(
            range(len(images)),
            read,
            writer.cut,
            dense.predictors(trained)[writer.predictor],
            placed(trained, mesh),
            finish,
            window=jax.ShapeDtypeStruct((*trained.image_size, trained.channels), dtype),
            mesh=mesh,
            batch_size=settings.batch_size,
            num_threads=settings.num_threads,
        )
    writer.close(images, names, errors)
    store("images.csv", _table(images, names, errors))
    return answers


def _table(images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]) -> bytes:
    """Return the CSV of all images: the file, the name of what was written for it, the error."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("file", "name", "error"))
    for index, (file, name) in enumerate(zip(images, names, strict=True)):
        error = errors.get(index, "")
        writer.writerow(map(cell, (file, "" if error else name, error)))
    return out.getvalue().encode(errors="backslashreplace")


class _Written:
    """A kind of prediction on its way into a folder; its methods run in several threads."""

    task: PixelTask
    predictor = "segments"

    def __init__(self, trained: Trained, put: Store, settings: PixelSettings) -> None:
        self.trained, self.put, self.settings = trained, put, settings
        self.names = trained.class_names
        score = SCORES.get(self.task, 0.0)
        self.score = score if settings.score is None else settings.score
        self.records: dict[str, Any] = {}  # by the image's name in the folder

    def cut(self, image: Num[np.ndarray, "H W C"]) -> decode.Windows:
        """Bring a whole image to the model's size."""
        return decode.padded(image, self.trained.image_size, self.trained.transform.resize)

    def take(
        self, seen: SeenImage, predicted: list[Any], name: str, image: UInt8[np.ndarray, "H W C"]
    ) -> tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]:
        """Write what is found in an image; returns that in numbers and drawn over the image."""
        raise NotImplementedError

    def close(self, images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]) -> None:
        """Write what is one file for all images."""

    def _listed(
        self, images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]
    ) -> tuple[list[dict[str, Any]], list[tuple[int, Any]]]:
        """Return COCO's list of images, by numbers from 1, and each one's record."""
        listed, records = [], []
        for index, (file, name) in enumerate(zip(images, names, strict=True)):
            if index not in errors:
                (height, width), record = self.records[name]
                own = {"id": index + 1, "file_name": file, "height": height, "width": width}
                listed.append(own)
                records.append((index + 1, record))
        return listed, records


class _Classes(_Written):
    task = PixelTask.CLASSES
    predictor = "segmentation"

    def cut(self, image: Num[np.ndarray, "H W C"]) -> decode.Windows:
        """Lay windows over an image as the run's evaluation does."""
        own = self.trained.config.evals.values() if self.trained.config else ()
        strides = [cfg.stride for cfg in own if isinstance(cfg, SegmentationEval)]
        stride = strides[0] if strides else 0
        size = self.trained.image_size
        return decode.covering(image, size, self.trained.transform.resize, stride)

    def take(
        self, seen: SeenImage, predicted: list[Any], name: str, image: UInt8[np.ndarray, "H W C"]
    ) -> tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]:
        found = decode.class_map(predicted, seen.windows, image.shape[:2])
        self.put(f"masks/{name}.png", _palette_png(found, len(self.names)))
        counts = np.bincount(found.ravel(), minlength=len(self.names))
        order = np.argsort(-counts, kind="stable")[: int((counts > 0).sum())]
        shares = [(self.names[k], float(counts[k] / found.size)) for k in order.tolist()]
        return shares, pictures.over(image, found)

    def close(self, images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]) -> None:
        self.put("classes.txt", "".join(f"{terminal(name)}\n" for name in self.names).encode())


class _WrittenObjects(_Written):
    task = PixelTask.OBJECTS

    def take(
        self, seen: SeenImage, predicted: list[Any], name: str, image: UInt8[np.ndarray, "H W C"]
    ) -> tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]:
        size = image.shape[:2]
        classes, masks = predicted[0]
        found = decode.instances(classes, masks, seen.windows, size)
        kept = decode.Instances(*(x[found.scores > self.score] for x in found))
        record = [
            {
                "category_id": int(k) + 1,
                "score": round(float(score), 6),
                "bbox": [box[0], box[1], box[2] - box[0], box[3] - box[1]],
                "area": int(mask.sum()),
                "iscrowd": 0,
                "segmentation": {"size": list(size), "counts": packed_text(mask)},
            }
            for score, k, mask, box in zip(*kept[:3], kept.boxes.tolist(), strict=True)
        ]
        self.records[name] = size, record
        objects = zip(kept.classes.tolist(), kept.scores.tolist(), strict=True)
        drawn = objects_drawn(image, kept.masks, kept.boxes, kept.classes)
        return [(self.names[k], score) for k, score in objects], drawn

    def close(self, images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]) -> None:
        listed, records = self._listed(images, names, errors)
        every = [{"image_id": image, **each} for image, own in records for each in own]
        numbered = [{"id": number, **each} for number, each in enumerate(every, 1)]
        categories = [{"id": k, "name": name} for k, name in enumerate(self.names, 1)]
        content = {"images": listed, "annotations": numbered, "categories": categories}
        self.put("instances.json", json.dumps(content).encode())


class _Segments(_Written):
    task = PixelTask.SEGMENTS

    def __init__(self, trained: Trained, put: Store, settings: PixelSettings) -> None:
        super().__init__(trained, put, settings)
        for name in settings.stuff:
            if name not in self.names:
                raise unknown("class of stuff", name, self.names)
        self.things = tuple(name not in settings.stuff for name in self.names)

    def take(
        self, seen: SeenImage, predicted: list[Any], name: str, image: UInt8[np.ndarray, "H W C"]
    ) -> tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]:
        size = image.shape[:2]
        said, masks = predicted[0]
        found = decode.panoptic(said, masks, seen.windows, size, self.things, self.score)
        ids, classes = found.found.ids, found.found.classes.tolist()
        colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=-1).astype(np.uint8)
        self.put(f"panoptic/{name}.png", _png(Image.fromarray(colours)))
        areas = np.bincount(ids.ravel(), minlength=len(classes) + 1)[1:].tolist()
        each = zip(classes, found.scores.tolist(), areas, strict=True)
        self.records[name] = (
            size,
            [
                {
                    "id": number,
                    "category_id": k + 1,
                    "score": round(score, 6),
                    "area": area,
                    "iscrowd": 0,
                }
                for number, (k, score, area) in enumerate(each, 1)
            ],
        )
        pairs = zip(classes, found.scores.tolist(), strict=True)
        likeliest = sorted(pairs, key=lambda pair: -pair[1])
        return [(self.names[k], score) for k, score in likeliest], pictures.over(image, ids - 1)

    def close(self, images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]) -> None:
        listed, records = self._listed(images, names, errors)
        by_number = dict(enumerate(names, 1))
        annotations = [
            {"image_id": image, "file_name": f"{by_number[image]}.png", "segments_info": own}
            for image, own in records
        ]
        categories = [
            {"id": k, "name": name, "isthing": int(thing)}
            for k, (name, thing) in enumerate(zip(self.names, self.things, strict=True), 1)
        ]
        content = {"images": listed, "annotations": annotations, "categories": categories}
        self.put("panoptic.json", json.dumps(content).encode())


class _Depths(_Written):
    task = PixelTask.DEPTH
    predictor = "depth"

    def take(
        self, seen: SeenImage, predicted: list[Any], name: str, image: UInt8[np.ndarray, "H W C"]
    ) -> tuple[list[tuple[str, float]], UInt8[np.ndarray, "H W 3"]]:
        found = depth.estimate(self.trained, cast(Any, seen.image))
        # Thousandths, or, where the greatest has no place among 16 bits, what is left of them.
        greatest = float(found.max())
        factor = min(_PER_UNIT, _MOST / greatest) if greatest > 0 else _PER_UNIT
        numbers = np.rint(np.maximum(found, 0) * factor).astype(np.uint16)
        self.put(f"depth/{name}.png", _png(Image.fromarray(numbers)))
        self.records[name] = 1 / factor
        drawn = contact_sheet.colors(contact_sheet.spread(found))
        return [("least", float(found.min())), ("greatest", greatest)], drawn

    def close(self, images: Sequence[str], names: Sequence[str], errors: Mapping[int, str]) -> None:
        scales = {f"{name}.png": self.records[name] for name in names if name in self.records}
        self.put("depth.json", json.dumps({"scale": scales}, indent=1).encode())


_WRITERS: dict[PixelTask, Callable[[Trained, Store, PixelSettings], _Written]] = {
    PixelTask.CLASSES: _Classes,
    PixelTask.SEGMENTS: _Segments,
    PixelTask.OBJECTS: _WrittenObjects,
    PixelTask.DEPTH: _Depths,
}


def _alone(index: int, image: Num[np.ndarray, "H W C"]) -> SeenImage:
    return SeenImage(index, image, decode.Windows(image[None], [(0, 0)], image.shape[:2]))


def _unique(images: Sequence[str]) -> list[str]:
    """Name each image in the folder by its file's name; of equal ones later have a number."""
    names: list[str] = []
    taken: set[str] = set()
    for file in images:
        stem = Path(file).stem or "image"
        name, number = stem, 1
        while name.casefold() in taken:
            number += 1
            name = f"{stem}-{number}"
        taken.add(name.casefold())
        names.append(name)
    return names


def _palette_png(classes: np.ndarray, count: int) -> bytes:
    """Write classes as a PNG of a palette, which is one channel of ids; above 255 of 16 bits."""
    if count > pictures.NONE:
        return _png(Image.fromarray(classes.astype(np.uint16)))
    picture = Image.fromarray(classes.astype(np.uint8))
    picture.putpalette(pictures.palette(count).ravel().tolist())
    return _png(picture)


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "png")
    return out.getvalue()


def _jpeg(image: UInt8[np.ndarray, "H W 3"]) -> bytes:
    out = io.BytesIO()
    Image.fromarray(image).save(out, "jpeg", quality=90)
    return out.getvalue()


def check_folder(out: Path | None, *, force: bool) -> Path:
    """Return the folder that predictions go to.

    Raises UserError: there is none, or one that is not empty, without `force`.
    """
    if out is None:
        raise UserError("a model of pixels writes files; add --out=FOLDER")
    with contextlib.suppress(OSError):
        if not force and any(out.iterdir()):
            raise UserError(f"--out={shown(str(out))} is not empty; choose another, or add --force")
    files.make_folder(out, "--out")
    return out
