# SPDX-License-Identifier: Apache-2.0
"""Which settings of the data do not go together; ranges stand at the fields of `config`."""

import contextlib
import re
from collections.abc import Sequence

import numpy as np

from vit_jax.data.augment import parse
from vit_jax.data.config import (
    CROP_RANGES,
    Crop,
    DataConfig,
    Partner,
    PixelType,
    TransformConfig,
    cover_size,
    has_affine,
    is_native,
    is_on,
    is_random,
)
from vit_jax.data.sources.base import Source, target_kind
from vit_jax.data.sources.partition import full_name
from vit_jax.errors import UserError, shown
from vit_jax.settings.fields import check_effects, check_range, conform

_LOOKED_AT = 16  # examples whose labels are read where none are listed


def check(cfg: DataConfig) -> None:
    """Raise UserError for values that are wrong for every dataset and model."""
    conform(cfg, "data.")
    cfg.name = full_name(cfg.name)
    check_transform(cfg.transform, "data.transform")
    if cfg.bands or cfg.statistics:
        from vit_jax.data import bands_config  # late: most runs read pictures

        bands_config.check(cfg)
    if cfg.bands:
        check_colors(cfg.transform, "data.transform")
    for name, values in (("data.mean", cfg.mean), ("data.std", cfg.std)):
        if not cfg.bands:  # whose number is theirs
            check_range(name, values, {"lengths": (1, 3), "note": ""})
    of_bands = bool(cfg.bands), "without data.bands", "dtype", "bands_shown"
    of_pictures = not cfg.bands, "with data.bands", "background", "upright"
    check_effects(cfg, "data.", (of_bands, of_pictures))
    if cfg.dtype is not PixelType.FLOAT32:  # which are in a unit of their own
        check_units("data.mean", cfg.mean)
        check_units("data.std", cfg.std)
    either = is_on(cfg.mix), "without mixup_alpha or cutmix_alpha"
    both = cfg.mix.mixup_alpha > 0 and cfg.mix.cutmix_alpha > 0
    rules = (
        (*either, "prob", "per_example", "partner"),
        (both, "without both mixup_alpha and cutmix_alpha", "switch_prob"),
    )
    check_effects(cfg.mix, "data.mix.", rules)
    if cfg.repeats > 1 and is_on(cfg.mix) and cfg.mix.partner is Partner.PREVIOUS:
        why = "repeats images in a row, and data.mix.partner='previous' would mix copies"
        raise UserError(f"data.repeats={cfg.repeats} {why}; set data.mix.partner=reversed")


def check_channels(cfg: DataConfig, channels: int) -> None:
    """Refuse data of other channels than the model's."""
    if cfg.bands:
        from vit_jax.data import bands_config  # late, as in `check`

        bands_config.check_channels(cfg, channels)
    elif channels not in (1, 3):
        why = "pictures are grey or RGB, of 1 or 3; set data.bands=all for arrays of bands"
        raise UserError(f"model.channels={channels}: {why}", field="model.channels")
    for key, each in (("mean", cfg.mean), ("std", cfg.std)):
        if len(each) not in (1, channels):
            raise UserError(f"data.{key}={each} must hold 1 or model.channels={channels} values")


def check_bands(source: Source, cfg: DataConfig, channels: int) -> None:
    """Raise UserError where the images of a source are not what `cfg` says of their bands."""
    if cfg.bands:
        from vit_jax.data import bands_config  # late, as in `check`

        bands_config.check_source(source, cfg, channels)


def check_units(name: str, values: Sequence[float]) -> None:
    """Refuse a mean or std of levels from 0 to 255: white is 1 in both."""
    if any(abs(value) > _MOST for value in values):
        given, ours = (",".join(f"{each:.4g}" for each in x) for x in (values, _in_units(values)))
        raise UserError(f"{name}={given}: white is 1 here, not 255; divided by 255 it is {ours}")


_MOST = 1.01  # of other scales' rounding


def _in_units(values: Sequence[float]) -> list[float]:
    return [value / 255 for value in values]


def check_transform(cfg: TransformConfig, name: str = "transform") -> None:
    """Refuse a value out of range, and a setting that the chosen crop never reads."""
    conform(cfg, f"{name}.")
    for key in ("area", "aspect", "scale"):
        value = getattr(cfg, key)
        if value and value[0] > value[1]:
            raise UserError(f"{name}.{key}={value} must be (low, high) with low <= high")
        if value and key != "scale" and cfg.crop not in CROP_RANGES:
            why = f"{name}.crop={cfg.crop.value!r} draws no box; set () or the crop 'inception'"
            raise UserError(f"{name}.{key} is set, but {why} or 'random_resized'")
    if bool(cfg.lengths) != is_native(cfg):
        why = "is of transform.crop 'native' and 'native_random'; set both, such as 256, or neither"
        raise UserError(f"{name}.lengths={cfg.lengths} {why}", field=f"{name}.lengths")
    if cfg.crop is Crop.NATIVE and len(cfg.lengths) > 1:
        why = "is several, and transform.crop='native' draws nothing; set one, or 'native_random'"
        raise UserError(f"{name}.lengths={cfg.lengths} {why}", field=f"{name}.lengths")
    if is_native(cfg) and has_affine(cfg):
        what = "degrees, translate, scale and shear are of images of one size"
        raise UserError(f"{name}: {what}; leave them, or set another {name}.crop")
    if cfg.zoom and cfg.zoom[0] > cfg.zoom[1]:
        raise UserError(f"{name}.zoom={cfg.zoom} must be (low, high) with low <= high")
    jitters = cfg.crop is Crop.SCALE_JITTER, f"with {name}.crop={cfg.crop.value!r}"
    check_effects(cfg, f"{name}.", [(*jitters, "zoom", "zoom_side")])
    if cfg.pad and cfg.crop is not Crop.RANDOM:
        raise UserError(f"{name}.pad={cfg.pad} must be 0 unless {name}.crop is 'random'")
    try:
        parse(cfg.auto_augment)
    except UserError as error:
        raise UserError(f"{name}.{error}") from None


# Parts of policies that move pixels, or lay something over them.
_MOVING = re.compile("rotate|shear|translate|cutout", re.IGNORECASE)


def check_dense(cfg: TransformConfig, name: str = "transform") -> None:
    """Refuse a transform whose moves the targets of pixels cannot follow."""
    if is_native(cfg):
        why = "gives images of any shape; set 'scale_jitter' or another crop of one size"
        raise UserError(f"{name}.crop={cfg.crop.value!r} {why}", field=f"{name}.crop")
    policy = parse(cfg.auto_augment)
    moving = [] if policy is None else [part for part in policy.parts() if _MOVING.search(part)]
    if moving:
        raise UserError(
            f"{name}.auto_augment={cfg.auto_augment!r} moves pixels ({moving[0]}), and an image's "
            "targets would not follow; set '' or '3-augment', and move by degrees, translate, "
            f"scale and shear of {name}",
            field=f"{name}.auto_augment",
        )


def check_dense_data(cfg: DataConfig) -> None:
    """Refuse settings that make no sense where every pixel has a target."""
    check_dense(cfg.transform, "data.transform")
    why = {
        "data.mix.mixup_alpha": (
            cfg.mix.mixup_alpha,
            "blends images, and no pixel has two targets",
        ),
        "data.mix.cutmix_alpha": (cfg.mix.cutmix_alpha, "pastes images without their targets"),
        "data.erasing_prob": (cfg.erasing_prob, "hides pixels whose targets would still be asked"),
        "data.balance": (cfg.balance, "counts the one class of each image, and here are several"),
        "data.pack": (cfg.pack, "puts images of any shape into rows"),
    }
    for field, (setting, reason) in why.items():
        if setting:
            raise UserError(f"{field}={setting:g} {reason}; set 0", field=field)
    if cfg.classes:
        what = "chooses images by their one class; leave ()"
        raise UserError(f"data.classes={cfg.classes} {what}", field="data.classes")
    if not cfg.upright:
        why_not = "targets of pixels are of upright images; set True"
        raise UserError(f"data.upright=False: {why_not}", field="data.upright")


def check_target_settings(cfg: DataConfig, is_dense: bool) -> None:
    """Refuse settings of targets of pixels for a run that learns from none."""
    names = ("max_segments", "min_visible", "redraws")
    check_effects(cfg, "data.", [(is_dense, "without targets of pixels", *names)])


def check_target_kind(source: Source, fields: Sequence[str]) -> None:
    """Refuse a source that has not what the `fields` of a batch (`targets.FIELDS`) are made of."""
    from vit_jax.data.targets import DEPTH, TargetKind  # late: few runs have such targets

    kind = target_kind(source)
    classes = {TargetKind.PIXELS: "a class of each pixel", TargetKind.SEGMENTS: "segments"}
    known = {**classes, TargetKind.DEPTH: "a depth of each pixel"}
    kinds = (TargetKind.DEPTH,) if DEPTH in fields else tuple(classes)
    if kind not in kinds:
        has = f"has {known[kind]}" if kind else "has images without targets of their pixels"
        needs = " or ".join(known[each] for each in kinds)
        raise UserError(f"{source.name} {has}; this run learns from {needs}", field="data.name")


def check_fixed(cfg: TransformConfig, name: str = "transform") -> None:
    """Refuse for an evaluation what `check_transform` does, and what draws at random."""
    check_transform(cfg, name)
    if is_random(cfg):
        fixed = "crop=center, squash_center, resize, native or none, flip=False, no affine fields"
        raise UserError(f"{name} draws at random; choose {fixed}, auto_augment='', color_jitter=0")


def check_colors(cfg: TransformConfig, name: str = "transform") -> None:
    """Refuse augmentations of colours, which bands do not have."""
    for key, off in (("auto_augment", "''"), ("color_jitter", "0")):
        if getattr(cfg, key):
            why = f"changes colours, and data.bands are none; set {off}"
            raise UserError(f"{name}.{key}={getattr(cfg, key)} {why}", field=f"{name}.{key}")


def check_pad(cfg: TransformConfig, size: tuple[int, int], name: str = "transform") -> None:
    """Refuse to mirror beyond the far side of an image resized for a model's (height, width)."""
    short = min(cover_size(size, cfg.crop_ratio))
    if cfg.pad >= short:
        raise UserError(f"{name}.pad={cfg.pad} must be below {short}, the short side resized")


def check_labels(source: Source, advice: str, allowed: int = 0) -> None:
    """Raise UserError, which ends with the `advice`, for more than `allowed` images without label.

    Listed labels are all looked at; of labels that lie in records, those of a few.
    """
    if "value" in source.spec:
        raise UserError(f"{source.name} has numbers and no classes; {advice}")
    if not source.num_classes or "label" not in source.spec:
        raise UserError(f"{source.name} has no labels; {advice}")
    if source.multi_label:
        return
    some = np.arange(len(source))
    if source.labels is None:
        some = np.unique(np.linspace(0, len(source) - 1, _LOOKED_AT).astype(int))
    labels = source.labels if source.labels is not None else _labels_of(source, some)
    wrong = np.flatnonzero((labels < 0) | (labels >= source.num_classes))
    if len(wrong) > allowed:
        first = shown(source.example_id(int(some[wrong[0]])))
        of = f"{len(some):,} images" if source.labels is not None else f"{len(some):,} looked at"
        raise UserError(
            f"{source.name} has {len(wrong):,} of {of} without a label, the first {first}; {advice}"
        )


def _labels_of(source: Source, some: np.ndarray) -> np.ndarray:
    found = np.zeros(len(some), int)
    for i, index in enumerate(some.tolist()):
        with contextlib.suppress(ValueError, OSError):  # what cannot be read is told when it is
            found[i] = source.read(index)["label"]
    return found
