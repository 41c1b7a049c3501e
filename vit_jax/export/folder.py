# SPDX-License-Identifier: Apache-2.0
"""The folder of an export: written completely or not at all, other files untouched.

`compare` measures what the export changed: its output beside the model's own, on real images.
"""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from jaxtyping import Num, UInt8

from vit_jax.data import short_name
from vit_jax.data.config import WHITE
from vit_jax.data.images import ops
from vit_jax.data.stream.transform import Transform
from vit_jax.errors import UserError
from vit_jax.evals import open_splits
from vit_jax.export import outputs
from vit_jax.inference.trained import Trained
from vit_jax.storage import files

MARK = "export.json"  # what an export is known by, written last
CARD = "README.md"
CLASSES = "classes.json"
WEIGHTS = {"stablehlo": "model.stablehlo", "onnx": "model.onnx", "timm": "model.safetensors"}
CONFIG = "config.json"  # timm's
ARRAYS = "weights.npz"  # what model.stablehlo takes
NAMES = (*WEIGHTS.values(), ARRAYS, CONFIG, CLASSES, CARD, MARK)
COUNT = 16  # images
Images = Num[np.ndarray, "B H W C"]


def _is_export(folder: Path) -> bool:
    try:
        return "vit_jax" in json.loads((folder / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError, TypeError):
        return False


def write(folder: Path, contents: Mapping[str, bytes], *, force: bool = False) -> None:
    """Write an export's files by name; `MARK` is among them.

    A new folder appears with all of them. In one that is there, an earlier export's files go when
    all of the new ones are on disk; until the last has its place there is no `MARK`.

    Raises UserError: it cannot be written there.
    """
    assert set(contents) <= set(NAMES), "what a later export may remove"
    files.check_folder(folder, "--to", force=force)
    folder = folder.resolve()  # "." has no name to put the temporary one beside
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with files.refused(f"cannot write {folder}"):
        try:
            temporary.mkdir(parents=True)
            for name, data in contents.items():
                files.write(temporary / name, data)
            if not folder.exists():
                temporary.rename(folder)
                return
            was_export = _is_export(folder)
            (folder / MARK).unlink(missing_ok=True)
            for name in NAMES:
                if was_export and name not in contents:
                    (folder / name).unlink(missing_ok=True)
            for name in sorted(contents, key=lambda name: name == MARK):
                (temporary / name).replace(folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Change:
    """How far an export's logits, or features, are from the model's."""

    images: str  # what was looked at, in words
    count: int  # how many
    largest: float  # the largest difference of any logit
    scale: float  # the largest logit
    same_top1: int  # images with the same first guess
    output: str = "logits"  # or features and maps, which guess nothing
    numbers: bool = False  # whether the outputs are numbers, which guess no class

    def __str__(self) -> str:
        """Describe it in one line."""
        guess = f", the first guess is the same for {self.same_top1}"
        guess = "" if self.numbers else guess
        return (
            f"on {self.count} {self.images} {self.output} (up to {self.scale:.3g}) change by at "
            f"most {self.largest:.2g}{guess if self.output == 'logits' else ''}"
        )


def compare(trained: Trained, run: Callable[[Images], Any]) -> Change:
    """Run an export and the model that it was made from on the same images.

    The export gets them in two batches, of one and of all others: it must accept any size.

    Raises UserError: numbers that are not finite, of either.
    """
    (images, name), what = sample_images(trained), " and ".join(outputs.meanings(trained))
    before = _rows(outputs.forward(trained)(images))
    if not np.isfinite(before).all():
        raise UserError(
            f"{trained.ref}: on {name} its {what} are not finite: nothing to export; take weights "
            "from before the training diverged, such as ckpt:DIR@STEP"
        )
    after = np.concatenate([_rows(run(images[:1])), _rows(run(images[1:]))])
    if not np.isfinite(after).all():
        why = f"on {name} the export's {what} are not finite, and the model's are"
        raise UserError(f"{why}; choose another --dtype, such as float32")
    return Change(
        images=name,
        count=len(images),
        largest=float(np.abs(after - before).max()),
        scale=float(np.abs(before).max()),
        same_top1=int((after.argmax(1) == before.argmax(1)).sum()),
        output=what,
        numbers=trained.gives_numbers,
    )


def _rows(found: Any) -> np.ndarray:
    """Lay the outputs of each image, one array or several, in a row."""
    several = found if isinstance(found, tuple) else (found,)
    return np.concatenate([np.asarray(x).reshape(len(x), -1) for x in several], axis=1)


def sample_images(trained: Trained) -> tuple[Images, str]:
    """Return a few images as the model takes them, and what they are.

    They are spread over the split that the run evaluates on. Where there is no run, or not its data
    any more, they are cut out of the two photographs that come with scikit-learn; of bands they are
    noise of the data's mean and deviation.
    """
    cfg = trained.config
    if cfg is not None and cfg.evals:
        try:
            source = open_splits(next(iter(cfg.evals.values())), cfg.data)[""]
        except UserError:
            source = None
        if source is not None and len(source):
            transform = Transform(
                cfg=trained.transform,
                image_size=trained.image_size,
                channels=trained.channels,
                exact=True,
                reading=trained.reading,
            )
            rng = np.random.default_rng(0)  # of which an evaluation's transform draws nothing
            chosen = np.linspace(0, len(source) - 1, min(COUNT, len(source))).astype(int)
            views = [transform(source.read(int(i))["image"], rng) for i in chosen]
            return np.stack(views), f"images of {short_name(source.name)}"
    if trained.reading.bands or trained.channels not in (1, 3):
        return _noise(trained), "images of noise"
    return np.stack(_photographs(trained)), "views of two photographs"


def _noise(trained: Trained) -> Images:
    white = WHITE[trained.reading.dtype]
    shape = (COUNT, *trained.image_size, trained.channels)
    drawn = np.random.default_rng(0).standard_normal(shape)
    values = (drawn * trained.std + trained.mean) * white
    if trained.dtype.kind == "u":
        values = np.rint(values).clip(0, white)
    return values.astype(trained.dtype)


def _photographs(trained: Trained) -> list[UInt8[np.ndarray, "H W C"]]:
    from sklearn.datasets import load_sample_images  # late: slow to import

    views = []
    for photo in load_sample_images().images:
        if trained.channels == 1:
            photo = cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)[:, :, None]
        height, width = photo.shape[:2]
        for i in range(COUNT // 2):
            # Windows of half the sides, from corner to corner.
            top, left = (i * height // COUNT, i % 4 * width // 8)
            window = photo[top : top + height // 2, left : left + width // 2]
            views.append(ops.resize(window, trained.image_size, trained.transform.resize))
    return views
