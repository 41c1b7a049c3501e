# SPDX-License-Identifier: Apache-2.0
"""What a config's augmentation does to images, as contact sheets: `visualize --augmentations`."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import numpy as np

from vit_jax import data, models, objectives
from vit_jax.config.tree import Config
from vit_jax.data.augment import parse
from vit_jax.data.augment.pillow import jitter
from vit_jax.data.config import is_on, mean_color
from vit_jax.data.images import bands
from vit_jax.data.images.ops import Operation
from vit_jax.data.sources.base import Example, Labelled, digest_of
from vit_jax.errors import UserError
from vit_jax.figures.contact_sheet import Tile, render, wrapped, write
from vit_jax.objectives import Supervised, SupervisedConfig
from vit_jax.storage.files import make_folder

_IMAGES = 4  # of the training split, where no files are given
_MAX_FILES = 8
_STEPS = 3  # of which a batch is shown: most of what mixing draws is drawn once for a batch


@dataclasses.dataclass
class Examples(Labelled):
    """A few encoded images in memory, as a `data.Source` with a class for each image."""

    name: str
    images: Sequence[bytes]
    class_names: tuple[str, ...]
    ids: Sequence[str]
    labels: None = None

    def __len__(self) -> int:
        return len(self.images)

    def read(self, index: int) -> Example:
        return {"image": self.images[index], "label": index}

    def example_id(self, index: int) -> str:
        return self.ids[index]

    def digest(self) -> str:
        return digest_of(map(os.fsencode, self.ids))

    def only(self, index: int) -> "Examples":
        one = slice(index, index + 1)
        return Examples(self.name, self.images[one], self.class_names[one], self.ids[one])


def write_sheets(cfg: Config, files: Sequence[str], out: Path, count: int) -> list[str]:
    """Write transform.png, operations.png and batch.png below `out`.

    Every random number follows from the run's seed. `files` are images to take instead of the
    training split; `count` is the draws of each image for each view of the objective, and the
    images of each batch. Returns a line for each sheet: its path, or why it is missing.

    Raises UserError: no such file or dataset, a broken image, or one that the transform refuses; a
    folder that cannot be made.
    """
    if data.is_native(cfg.data.transform):
        raise UserError(
            "sheets of augmentation show images of one size; to see the rest of it set "
            "data.transform.crop=random_resized and lengths=()"
        )
    if cfg.objective.pixel_target and not files:
        return _with_targets(cfg, out, count)
    if files:
        source = examples = _read_files(files)
    else:
        source = _open(cfg)
        examples = _first(source, cfg)
    _evaluated(cfg, examples)  # before a directory is made: are all of them images?
    views = objectives.create(cfg.objective, cfg.model, cfg.data).views
    make_folder(out, "--out")  # before anything is drawn, which takes long
    sheets = {
        "transform.png": _transform_sheet(cfg, views, examples, count),
        "operations.png": _operations_sheet(cfg, views, examples),
        "batch.png": _batch_sheet(cfg, views, source, count),
    }
    return [
        write(out, name, sheet) if isinstance(sheet, bytes) else f"no {name}: {sheet}"
        for name, sheet in sheets.items()
    ]


def _with_targets(cfg: Config, out: Path, count: int) -> list[str]:
    """Write transform.png of an objective that learns from pixels."""
    from vit_jax.visual.target_sheets import transform_sheet  # late: most runs have no such targets

    source = _open(cfg)
    objective = objectives.create(cfg.objective, cfg.model, cfg.data)
    make_folder(out, "--out")
    sheet = transform_sheet(cfg, objective, source, count)
    why = "targets of pixels are neither mixed nor moved by a policy"
    return [write(out, "transform.png", sheet), f"no operations.png, no batch.png: {why}"]


def _read_files(files: Sequence[str]) -> Examples:
    if len(files) > _MAX_FILES:
        raise UserError(f"--images takes {_MAX_FILES} files at most, not {len(files)}")
    try:
        images = [Path(file).read_bytes() for file in files]
    except OSError as error:
        raise UserError(f"--images: {error.filename}: {error.strerror}") from error
    ids = [f"--images {file}" for file in files]
    return Examples("--images", images, tuple(Path(file).stem for file in files), ids)


def _open(cfg: Config) -> data.Source:
    try:
        return data.open_source(
            cfg.data.name,
            cfg.data.data_dir,
            cfg.data.train_split,
            classes=cfg.data.classes,
            bands=cfg.data.bands,
            target=cfg.objective.pixel_target,
        )
    except UserError as error:
        raise UserError(f"{error} (or take files instead: --images FILE ...)") from error


def _first(source: data.Source, cfg: Config) -> Examples:
    """Read the run's first images."""
    indices = [int(index) for index in _train_batch(cfg, _plain(cfg), source, _IMAGES)["index"]]
    examples = [source.read(index) for index in indices]
    labels = [example["label"] for example in examples]
    ids = [[label] if np.ndim(label) == 0 else np.flatnonzero(label) for label in labels]
    titles = tuple(", ".join(source.class_names[int(i)] for i in each) for each in ids)
    images = [example["image"] for example in examples]
    return Examples(source.name, images, titles, [source.example_id(i) for i in indices])


def _plain(cfg: Config) -> Mapping[str, data.View]:
    """The views of an objective that has one."""
    height, width, channels = models.input_shape(cfg.model)
    return data.one_view(cfg.data.transform, (height, width), channels, data.reading(cfg.data))


def _train_batch(
    cfg: Config,
    views: Mapping[str, data.View],
    source: data.Source,
    size: int,
    *,
    step: int = 0,
    repeats: int = 1,
) -> data.Batch:
    """Return a batch of the run's pipeline, made without worker processes."""
    stream = data.train_batches(
        source,
        dataclasses.replace(cfg.data, batch_size=size, repeats=repeats, num_workers=0, prefetch=1),
        views=views,
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
    views = data.one_view(transform, (height, width), channels, data.reading(cfg.data))
    with data.eval_batches(examples, views, batch_size=len(examples)) as stream:
        return next(stream)["image"]


def _transform_sheet(
    cfg: Config, views: Mapping[str, data.View], examples: Examples, count: int
) -> bytes:
    """Draw a row for each view of each image."""
    rows = []
    for i, image in enumerate(_evaluated(cfg, examples)):
        # A source of one image gives it in every epoch, each time drawn anew.
        batch = _train_batch(cfg, views, examples.only(i), count, step=i)
        for name, view in views.items():
            draws = batch[name].reshape(-1, *view.size, view.channels)[:count]
            word = "draw" if _is_one(views) else name
            row = [Tile(_shown(cfg, image), f"{examples.class_names[i]}, as evaluated")]
            rows.append(
                row + [Tile(_shown(cfg, draw), f"{word} {j}") for j, draw in enumerate(draws, 1)]
            )
    return render(rows, "\n".join(_titles(cfg, views)))


def _shown(cfg: Config, image: np.ndarray) -> np.ndarray:
    return bands.picture(image, cfg.data.bands_shown) if cfg.data.bands else image


def _is_one(views: Mapping[str, data.View]) -> bool:
    return sum(view.count for view in views.values()) == 1


def _titles(cfg: Config, views: Mapping[str, data.View]) -> list[str]:
    """Describe each view in a line."""
    if _is_one(views):
        return [f"data.transform: {_describe(cfg.data.transform)}"]
    return [
        "{}, {} of {}x{}: {}".format(name, v.count, *v.size, _describe(v.transform))
        for name, v in views.items()
    ]


def _describe(cfg: data.TransformConfig | data.MixConfig) -> str:
    """List the fields that are not at their defaults."""
    plain, names = type(cfg)(), (field.name for field in dataclasses.fields(cfg))
    shown = [n for n in names if getattr(cfg, n) != getattr(plain, n)]
    return ", ".join(f"{n}={getattr(cfg, n)}" for n in shown) or "the defaults"


def _operations_sheet(
    cfg: Config, views: Mapping[str, data.View], examples: Examples
) -> bytes | str:
    """Draw every operation on the colours of the views, once for views that share them."""
    found = dict.fromkeys(_colors(view.transform) for view in views.values())
    drawn = {colors: parts for colors in found if (parts := _parts(cfg, colors))}
    if not drawn:
        who = "data.transform" if _is_one(views) else f"the transform of {', '.join(views)}"
        return f"{who} has neither auto_augment nor color_jitter"
    image = np.ascontiguousarray(_evaluated(cfg, examples.only(0))[0])
    rows = []
    for parts in drawn.values():
        tiles = [Tile(image, examples.class_names[0])]
        for i, (name, part) in enumerate(parts.items()):
            tiles.append(Tile(part(image, np.random.default_rng((cfg.seed, i))), name))
        columns = len(tiles) if len(tiles) <= 7 else math.ceil(math.sqrt(2 * len(tiles)))
        rows += wrapped(tiles, columns)
    return render(rows, "\n".join(f"what {_describe(c)} may do to an image" for c in drawn))


def _colors(cfg: data.TransformConfig) -> data.TransformConfig:
    """Leave nothing of a transform but its policy and colour jitter."""
    return data.TransformConfig(auto_augment=cfg.auto_augment, color_jitter=cfg.color_jitter)


def _parts(cfg: Config, colors: data.TransformConfig) -> dict[str, Operation]:
    policy = parse(colors.auto_augment, mean_color(cfg.data))
    parts = {} if policy is None else policy.parts()
    if strength := colors.color_jitter:
        parts[f"color_jitter {strength:g}"] = lambda image, rng: jitter(image, strength, rng)
    return parts


def _batch_sheet(
    cfg: Config, views: Mapping[str, data.View], source: data.Source, count: int
) -> bytes | str:
    settings = cfg.data
    if not (is_on(settings.mix) or settings.erasing_prob):
        return "the step neither mixes (data.mix) nor erases (data.erasing_prob)"
    if not _is_one(views):
        return f"it shows mixing and erasing of one view; the objective has {', '.join(views)}"
    # The shares, without what label smoothing and binarize make of them.
    model = models.with_fields(cfg.model, {"num_classes": source.num_classes})
    objective = Supervised(SupervisedConfig(), model, settings)
    prepare = jax.jit(objective.prepare)
    rows = []
    for step in range(_STEPS):
        batch = _train_batch(cfg, _plain(cfg), source, count, step=step, repeats=settings.repeats)
        arrays = {key: batch[key] for key in ("image", "label")}
        seen = prepare(arrays, jax.random.fold_in(jax.random.key(cfg.seed), step))
        images = np.asarray(seen["image"], np.float32) * settings.std + settings.mean
        if settings.bands:
            images = [_shown(cfg, each) for each in images]
        else:
            images = np.clip(np.rint(255 * images), 0, 255).astype(np.uint8)
        captions = [_shares(source, target) for target in np.asarray(seen["targets"])]
        rows.append(list(map(Tile, images, captions)))
    title = f"batches of {count} as the step sees them, one a row; data.mix: "
    return render(rows, f"{title}{_describe(settings.mix)}; erasing_prob={settings.erasing_prob:g}")


def _shares(source: data.Source, target: np.ndarray) -> str:
    """Name the two classes with the largest shares, one a line."""
    best = [i for i in np.argsort(-target, kind="stable")[:2] if target[i] > 0]
    return "\n".join(f"{100 * target[i]:.0f} % {source.class_names[i]}" for i in best)
