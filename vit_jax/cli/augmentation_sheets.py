# SPDX-License-Identifier: Apache-2.0
"""What a config's augmentation does to images, as contact sheets: `visualize --augmentations`."""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import jax
import numpy as np

from vit_jax import data, models
from vit_jax.cli.contact_sheet import Tile, render
from vit_jax.config import Config
from vit_jax.data.augment import jitter, parse
from vit_jax.data.config import mean_color
from vit_jax.data.mix_config import is_on
from vit_jax.data.sources import Example, Label, Labelled, digest_of
from vit_jax.errors import UserError
from vit_jax.objectives import Supervised, SupervisedConfig

_IMAGES = 4  # of the training split, where no files are given
_MAX_FILES = 8
_STEPS = 3  # of which a batch is shown: most of what mixing draws is drawn once for a batch


class Examples(Labelled):
    """A few encoded images in memory, as a `data.Source`."""

    labels = None

    def __init__(
        self, name: str, images: Sequence[bytes], titles: Sequence[str], ids: Sequence[str]
    ) -> None:
        self.name = name
        self.class_names = tuple(titles)
        self._images, self._ids = tuple(images), tuple(ids)

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> Example:
        """Return an encoded image and its number."""
        return {"image": self._images[index], "label": index}

    def example_id(self, index: int) -> str:
        """Name an image as its errors do."""
        return self._ids[index]

    def digest(self) -> str:
        """Return that of the images' names."""
        return digest_of(os.fsencode(name) for name in self._ids)

    def only(self, index: int) -> "Examples":
        """Return one of them alone."""
        one = slice(index, index + 1)
        return Examples(self.name, self._images[one], self.class_names[one], self._ids[one])


def write_sheets(cfg: Config, files: Sequence[str], out: Path, count: int) -> list[str]:
    """Write transform.png, operations.png and batch.png below `out`.

    Args:
        cfg: the run; every random number follows from its seed.
        files: images to take instead of the run's training split.
        out: a directory, made where it is not there.
        count: draws of each image, and images of each batch.

    Returns:
        A line for each sheet: its path, or why there is none.

    Raises:
        UserError: no such file or dataset, a broken image, or one that the transform refuses; a
            directory that cannot be made.
    """
    if files:
        source = examples = _read_files(files)
    else:
        source = _open(cfg)
        examples = _first(source, cfg)
    _evaluated(cfg, examples)  # before a directory is made: are all of them images?
    with _writing():
        out.mkdir(parents=True, exist_ok=True)
    sheets = {
        "transform.png": _transform_sheet(cfg, examples, count),
        "operations.png": _operations_sheet(cfg, examples),
        "batch.png": _batch_sheet(cfg, source, count),
    }
    lines = []
    for name, sheet in sheets.items():
        if isinstance(sheet, bytes):
            with _writing():
                (out / name).write_bytes(sheet)
            lines.append(str(out / name))
        else:
            lines.append(f"no {name}: {sheet}")
    return lines


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out: {error.filename}: {error.strerror}") from error


def _read_files(files: Sequence[str]) -> Examples:
    if len(files) > _MAX_FILES:
        raise UserError(f"--images takes {_MAX_FILES} files at most, not {len(files)}")
    try:
        images = [Path(file).read_bytes() for file in files]
    except OSError as error:
        raise UserError(f"--images: {error.filename}: {error.strerror}") from error
    ids = [f"--images {file}" for file in files]
    return Examples("--images", images, [Path(file).stem for file in files], ids)


def _open(cfg: Config) -> data.Source:
    try:
        return data.open_source(
            cfg.data.name, cfg.data.data_dir, cfg.data.train_split, classes=cfg.data.classes
        )
    except UserError as error:
        raise UserError(f"{error} (or take files instead: --images FILE ...)") from error


def _first(source: data.Source, cfg: Config) -> Examples:
    """Read the run's first images."""
    images, titles, ids = [], [], []
    batch = _train_batch(cfg, source, _IMAGES)
    for index in batch["index"]:
        example = source.read(int(index))
        images.append(example["image"])
        titles.append(_title(source, example["label"]))
        ids.append(source.example_id(int(index)))
    return Examples(source.name, images, titles, ids)


def _title(source: data.Source, label: Label) -> str:
    ids = [int(label)] if np.ndim(label) == 0 else np.flatnonzero(label).tolist()
    return ", ".join(source.class_names[i] for i in ids)


def _train_batch(
    cfg: Config, source: data.Source, size: int, *, step: int = 0, repeats: int = 1
) -> data.Batch:
    """Return a batch of the run's pipeline, made without worker processes."""
    height, width, channels = models.input_shape(cfg.model)
    stream = data.train_batches(
        source,
        dataclasses.replace(cfg.data, batch_size=size, repeats=repeats, num_workers=0, prefetch=1),
        views=data.one_view(cfg.data.transform, (height, width), channels),
        seed=cfg.seed,
        start_step=step,
    )
    with stream:
        return next(stream)


def _evaluated(cfg: Config, examples: Examples) -> np.ndarray:
    """Return the images as the run's first evaluation sees them; squashed where it has none."""
    height, width, channels = models.input_shape(cfg.model)
    plain = data.TransformConfig(crop=data.Crop.RESIZE, resize=cfg.data.transform.resize)
    transform = next((each.transform for each in cfg.evals.values()), plain)
    stream = data.eval_batches(
        examples,
        data.one_view(transform, (height, width), channels),
        batch_size=len(examples),
    )
    with stream:
        return next(stream)["image"]


def _transform_sheet(cfg: Config, examples: Examples, count: int) -> bytes:
    rows = []
    for i, image in enumerate(_evaluated(cfg, examples)):
        # A source of one image gives it in every epoch, each time drawn anew.
        draws = _train_batch(cfg, examples.only(i), count, step=i)["image"]
        row = [Tile(image, f"{examples.class_names[i]}, as evaluated")]
        rows.append(row + [Tile(draw, f"draw {j}") for j, draw in enumerate(draws, 1)])
    return render(rows, f"data.transform: {_describe(cfg.data.transform)}")


def _describe(cfg: data.TransformConfig | data.MixConfig) -> str:
    """List the fields that are not at their defaults."""
    plain = type(cfg)()
    values = {field.name: getattr(cfg, field.name) for field in dataclasses.fields(cfg)}
    shown = {name: value for name, value in values.items() if value != getattr(plain, name)}
    return ", ".join(f"{name}={value}" for name, value in shown.items()) or "the defaults"


def _operations_sheet(cfg: Config, examples: Examples) -> bytes | str:
    transform = cfg.data.transform
    policy = parse(transform.auto_augment, mean_color(cfg.data))
    parts = {} if policy is None else policy.parts()
    if transform.color_jitter:
        strength = transform.color_jitter
        parts[f"color_jitter {strength:g}"] = lambda image, rng: jitter(image, strength, rng)
    if not parts:
        return "data.transform has neither auto_augment nor color_jitter"
    image = np.ascontiguousarray(_evaluated(cfg, examples.only(0))[0])
    tiles = [Tile(image, examples.class_names[0])]
    for i, (name, part) in enumerate(parts.items()):
        tiles.append(Tile(part(image, np.random.default_rng((cfg.seed, i))), name))
    columns = len(tiles) if len(tiles) <= 7 else math.ceil(math.sqrt(2 * len(tiles)))
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    drawn = data.TransformConfig(
        auto_augment=transform.auto_augment, color_jitter=transform.color_jitter
    )
    return render(rows, f"what {_describe(drawn)} may do to an image")


def _batch_sheet(cfg: Config, source: data.Source, count: int) -> bytes | str:
    settings = cfg.data
    if not (is_on(settings.mix) or settings.erasing_prob):
        return "the step neither mixes (data.mix) nor erases (data.erasing_prob)"
    # The shares, without what label smoothing and binarize make of them.
    model = models.with_fields(cfg.model, {"num_classes": source.num_classes})
    objective = Supervised(SupervisedConfig(), model, settings)
    prepare = jax.jit(objective.prepare)
    rows = []
    for step in range(_STEPS):
        batch = _train_batch(cfg, source, count, step=step, repeats=settings.repeats)
        arrays = {key: batch[key] for key in ("image", "label")}
        seen = prepare(arrays, jax.random.fold_in(jax.random.key(cfg.seed), step))
        images = _denormalized(np.asarray(seen["image"], np.float32), settings.mean, settings.std)
        rows.append(
            [
                Tile(image, _shares(source, target))
                for image, target in zip(images, np.asarray(seen["targets"]), strict=True)
            ]
        )
    title = f"batches of {count} as the step sees them, one a row; data.mix: "
    return render(rows, f"{title}{_describe(settings.mix)}; erasing_prob={settings.erasing_prob:g}")


def _denormalized(
    images: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]
) -> np.ndarray:
    return np.clip(np.rint(255 * (images * std + mean)), 0, 255).astype(np.uint8)


def _shares(source: data.Source, target: np.ndarray) -> str:
    """Name the two classes with the largest shares, one a line."""
    best = [i for i in np.argsort(-target, kind="stable")[:2] if target[i] > 0]
    return "\n".join(f"{100 * target[i]:.0f} % {source.class_names[i]}" for i in best)
