# SPDX-License-Identifier: Apache-2.0
"""The preprocessing of published networks, which a file of weights does not hold.

published.tsv has timm 1.0.31's pretrained_cfg of every tag of the networks here; a config.json of
timm's form on the Hugging Face Hub has the same of one file. tests/parity/published_table.py makes
the former.
"""

import functools
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.data import AS_SHOWN, Crop, CropRule, Reading, Resize, TransformConfig
from vit_jax.errors import UserError, shown
from vit_jax.models import ModelConfig, pair
from vit_jax.models.facts import HALF, IMAGENET, Channels
from vit_jax.weights.reference import split

TABLE = Path(__file__).with_name("published.tsv")
COLUMNS = (
    *("name", "size", "test_size", "crop", "test_crop"),
    *("mode", "interpolation", "mean", "std", "file", "classes"),
)
_CONFIG, _MAX_CONFIG = "config.json", 1 << 22
_MOST = 1e6  # of any number there
GUESS = "a guess by the family"  # a source that is none


class Preprocessing(NamedTuple):
    """What happens to an image before a network sees it; in mean and std white is 1."""

    mean: Channels
    std: Channels
    transform: TransformConfig
    size: tuple[int, int] | None  # (height, width) that the network was published for, where known
    source: str  # of these values
    reading: Reading = AS_SHOWN


def preprocessing(ref: str, cfg: ModelConfig) -> Preprocessing:
    """Return the published preprocessing of a file's network.

    Google's files (npz:): the image squashed to size, [-1, 1] (`resize` and `value_range(-1, 1)` of
    vision_transformer and big_vision). PyTorch files (timm:): what a config.json beside the file
    says, or timm's table by the file's name; else the family's commonest, which is a guess.

    Raises UserError: a config.json that cannot be used; names it and what is wrong.
    """
    scheme, path = split(ref)
    if scheme == "npz":
        plain = TransformConfig(crop=Crop.RESIZE)
        return Preprocessing(*HALF, plain, None, "Google's code, the same for every npz: file")
    found = _published(Path(os.path.expanduser(path)).absolute())
    return of_timm(*found, cfg) if found else of_family(cfg)


def about(path: str) -> Mapping[str, Any]:
    """Return timm's pretrained_cfg of a file as `preprocessing` finds it, {} where there is none.

    It has `img_size`, `window_size`, `num_classes`, `label_names` and `label_descriptions` besides
    where the file's own config.json gives them.

    Raises UserError: a config.json that cannot be read.
    """
    found = _published(Path(os.path.expanduser(path)).absolute())
    return found[0] if found else {}


def pretrained(tree: Any) -> Mapping[str, Any]:
    """Return pretrained_cfg of a config.json of timm's, with what it says besides.

    That is the sizes of its model_args, and its classes.
    """
    # timm once wrote pretrained_cfg alone.
    cfg = tree.get("pretrained_cfg", tree) if isinstance(tree, dict) else None
    if not isinstance(cfg, dict):
        return {}
    args = tree.get("model_args")
    sizes = args if isinstance(args, dict) else {}
    classes = ("num_classes", "label_names", "label_descriptions")
    return (
        cfg
        | {key: tree[key] for key in classes if tree.get(key)}
        | {key: sizes[key] for key in ("img_size", "window_size") if sizes.get(key)}
    )


def of_timm(about: Mapping[str, Any], source: str, cfg: ModelConfig) -> Preprocessing:
    """Return the preprocessing that a pretrained_cfg of timm's says, for a model of ours.

    Raises UserError: a value that cannot be.
    """
    chosen = _as_timm(about, source, cfg)
    return chosen._replace(mean=per_channel(chosen.mean, cfg), std=per_channel(chosen.std, cfg))


def named(name: str) -> tuple[str, Mapping[str, Any]] | None:
    """Return a published network of timm's by its name, and its pretrained_cfg.

    Without a tag it is timm's default of the architecture.
    """
    table, others = _table()
    tagged = name if name in table else others.get(name, "")
    return (tagged, table[tagged]) if tagged else None


def tags(architecture: str) -> list[str]:
    """Return the published networks of an architecture of timm's, "NAME.TAG" each."""
    return [name for name in _table()[0] if name.partition(".")[0] == architecture]


def _published(place: Path) -> tuple[Mapping[str, Any], str] | None:
    """Return timm's pretrained_cfg of a file, and its source: a config.json, or the file's name.

    A config.json that names another network than the file's own name does is of another file.
    """
    beside = _beside(place)
    if beside is None:
        return _by_name(place)
    cfg, source, network = beside
    own, others = _own_name(place), _table()[1]
    architecture = own.partition(".")[0]
    # A name without a tag is an architecture's: its default is only one of its tags.
    tagged = own != others.get(place.stem)
    same = network in ("", own, architecture) or (
        not tagged and network.partition(".")[0] == architecture
    )
    return (cfg, source) if same or not own else (_table()[0][own], f"timm's table ({own})")


def _own_name(place: Path) -> str:
    """Return the published network that a file's own name names, or ""."""
    table, others = _table()
    name = others.get(place.name) or others.get(place.stem, place.stem)
    return name if name in table else ""


def per_channel(values: Channels, cfg: ModelConfig) -> Channels:
    """Return a value for each channel of a model, or their mean for all."""
    return values if cfg.channels == len(values) else (sum(values) / len(values),)


def of_family(cfg: ModelConfig) -> Preprocessing:
    """Return the commonest of timm's files of a family: for one of another name, a guess."""
    images = models.family(cfg).images(cfg)
    ratio = images.large_crop if max(pair(cfg.image_size, "image_size")) > 224 else images.crop
    reason = f"{GUESS}: no config.json lies beside the file, and timm publishes none of its name"
    transform = _transform(Crop.CENTER, ratio, bilinear=images.bilinear)
    mean, std = (per_channel(values, cfg) for values in images.mean_std)
    return Preprocessing(mean, std, transform, None, reason)


def _transform(crop: Crop, ratio: float, *, bilinear: bool) -> TransformConfig:
    """Return what timm does: by Pillow, rounded as torchvision does."""
    return TransformConfig(
        crop=crop,
        crop_ratio=ratio,
        crop_rule=CropRule.TORCH,
        resize=Resize.BILINEAR_ANTIALIAS if bilinear else Resize.BICUBIC,
    )


def _by_name(place: Path) -> tuple[Mapping[str, Any], str] | None:
    """Look up timm's pretrained_cfg, and its source, by the name of a file.

    Names are timm's, `vit_base_patch16_224.dino`, of the file (without a tag: timm's default for
    the architecture) or of a folder that it is in; or that of the authors' own file.
    """
    table = _table()[0]
    # The Hub's cache is models--timm--NAME/snapshots/HASH/model.safetensors.
    folders = [folder.name.rpartition("--")[2] for folder in place.parents[:3]]
    for part in (_own_name(place), *folders):
        if part in table:
            return table[part], f"timm's table ({part})"
    return None


@functools.cache
def _table() -> tuple[Mapping[str, Mapping[str, Any]], Mapping[str, str]]:
    """Return pretrained_cfg by name, and the name of an architecture's default or a file."""
    table: dict[str, Mapping[str, Any]] = {}
    names: dict[str, str] = {}
    for line in TABLE.read_text("utf-8").splitlines()[1:]:
        row = dict(zip(COLUMNS, line.split("\t"), strict=True))
        sizes = [[3, *map(int, row[key].split("x"))] for key in ("size", "test_size") if row[key]]
        crops = [float(row[key]) for key in ("crop", "test_crop") if row[key]]
        table[row["name"]] = {
            "input_size": sizes[0],
            "test_input_size": sizes[-1],
            "crop_pct": crops[0],
            "test_crop_pct": crops[-1],
            "crop_mode": row["mode"],
            "interpolation": row["interpolation"],
            "mean": [float(value) for value in row["mean"].split(",")],
            "std": [float(value) for value in row["std"].split(",")],
            "num_classes": int(row["classes"]),
        }
        names.setdefault(row["name"].partition(".")[0], row["name"])
        if row["file"]:
            names[row["file"]] = row["name"]
    return table, names


def _beside(place: Path) -> tuple[Mapping[str, Any], str, str] | None:
    """Read pretrained_cfg and network of the config.json beside a file, if it is timm's."""
    file = place.parent / _CONFIG
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            tree = json.loads(stream.read(_MAX_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "no JSON"
        raise UserError(
            f"{shown(str(file))}: {reason}; it lies beside the weights and should hold how their "
            "images are prepared: mend it or take it away"
        ) from None
    cfg = pretrained(tree)
    if "mean" not in cfg:  # another library's file of this name
        return None
    network, tag = tree.get("architecture"), cfg.get("tag")
    name = f"{network}.{tag}" if network and tag and "." not in str(network) else network
    return cfg, shown(str(file)), name if isinstance(name, str) else ""


def check_normalisation(mean: Sequence[float], std: Sequence[float], what: str) -> None:
    """Refuse values of pixels from 0 to 255, or what no image has, in units where white is 1.

    Raises UserError: `what` and the range.
    """
    if min(mean) < -0.01 or max(mean) > 1.01 or min(std) < 1 / 128 or max(std) > 2:
        raise UserError(
            f"{what} leave pixels of no usual range: in units where white is 1, a mean lies from 0 "
            "to 1 and a deviation from 0.008 to 2; mend the file, values of 0 to 255 divided by 255"
        )


def _as_timm(cfg: Mapping[str, Any], source: str, model: ModelConfig) -> Preprocessing:
    """Return what timm makes of a pretrained_cfg; what it leaves out has timm's defaults.

    Raises UserError: a value that cannot be.
    """

    def numbers(key: str, default: Any, count: int, least: float) -> tuple[float, ...]:
        value = cfg.get(key)
        value = default if value is None else value
        listed = value if isinstance(value, list | tuple) else [value]
        fit = all(type(n) in (int, float) and max(least, -_MOST) <= n <= _MOST for n in listed)
        if not fit or len(listed) != count:
            bound = f" from {least:g} on" if math.isfinite(least) else ""
            many = f"{count} numbers" if count > 1 else "a number"
            raise UserError(f"{source}: {key}={value!r} must be {many}{bound}")
        return tuple(map(float, listed))

    def choice(key: str, *choices: str) -> str:
        value = cfg.get(key) or choices[0]
        if value not in choices:
            raise UserError(f"{source}: {key}={value!r} must be {' or '.join(choices)}")
        return value

    channels, *size = map(int, numbers("input_size", (3, 224, 224), 3, 1.0))
    _, *test = map(int, numbers("test_input_size", (channels, *size), 3, 1.0))
    (ratio,) = numbers("crop_pct", 0.875, 1, 0.001)
    (test_ratio,) = numbers("test_crop_pct", ratio, 1, 0.001)
    if max(ratio, test_ratio) > 1:
        raise UserError(f"{source}: crop_pct={max(ratio, test_ratio):g} must be at most 1")
    # Some are tested on larger images than they were trained on.
    if test != size and min(pair(model.image_size, "image_size")) >= min(test):
        size, ratio = test, test_ratio
    crop = Crop.CENTER
    if choice("crop_mode", "center", "squash") == "squash":
        crop = Crop.RESIZE if ratio == 1 else Crop.SQUASH_CENTER
    bilinear = choice("interpolation", "bicubic", "bilinear") == "bilinear"
    mean = numbers("mean", IMAGENET[0], channels, -math.inf)
    std = numbers("std", IMAGENET[1], channels, 1e-9)
    check_normalisation(mean, std, f"{source}: mean={list(mean)} and std={list(std)}")
    return Preprocessing(
        mean=mean,
        std=std,
        transform=_transform(crop, ratio, bilinear=bilinear),
        size=(size[0], size[1]),
        source=source,
    )
