# SPDX-License-Identifier: Apache-2.0
"""A trained model of a run or a published file, with everything needed to use it."""

import dataclasses
import enum
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_jax import data, errors, models, trees, weights
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig, classes
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.losses import Loss
from vit_jax.settings.fields import is_free
from vit_jax.storage import bucket as bucket_folder
from vit_jax.weights.apply import OtherHead
from vit_jax.weights.config import CHECKPOINT, KINDS, ResizeRule, split
from vit_jax.weights.published import describe as networks
from vit_jax.weights.published.describe import preprocessing
from vit_jax.weights.published.table import per_channel

if TYPE_CHECKING:
    from vit_jax.models.two_towers import TwoTowers

_SUFFIXES = {".npz": "npz", ".safetensors": "timm", ".pth": "timm", ".pt": "timm", ".bin": "timm"}


class Tta(enum.StrEnum):
    """Copies of an image for test-time augmentation, besides the image itself."""

    FLIP = "flip"  # mirrored left to right; with SHIFT, the shifted copies too
    SHIFT = "shift"  # moved by 1/16 of its sides towards each corner, its edges repeated


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """A trained model, of a checkpoint's `step` and `metrics`; white is 1 in `mean` and `std`."""

    ref: str  # where its weights come from: "ckpt:DIR", "npz:FILE", "timm:FILE", "hub:USER/NAME"
    # The same with the checkpoint of a run, or the commit of a repository, from which the rest was
    # read: there may be a newer or better one by the time the weights are read.
    source: str
    model: ModelConfig
    # {"params": ..., **model_state} as numpy; {} before they are read.
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    mean: tuple[float, ...]
    std: tuple[float, ...]
    transform: TransformConfig  # what evaluation does to an image
    reading: data.Reading = data.AS_SHOWN  # the run's rules by which files become pixels
    class_names: tuple[str, ...]  # K of them
    has_head: bool = True  # whether the weights had a head; if not, it is all zeros
    loss: Loss = Loss.SOFTMAX  # what it was trained with
    ema: bool = False  # the weights are a run's moving average
    # A file's pair of towers and its tokenizer; runs and repositories say theirs.
    towers: "TwoTowers | None" = None
    tokenizer: str = ""
    # What is beside the model where every pixel counts, an `EomtHead` or a `DptConfig`;
    # `inference.dense` makes predictors of it.
    head: Any = None
    tta: tuple[Tta, ...] = ()  # the copies of each image over which a prediction is averaged
    config: Config | None = None  # the run's; None for a published file
    step: int | None = None
    best_by: str = ""  # the metric that chose the step; "" if it was named or is the last
    metrics: Mapping[str, float] = dataclasses.field(default_factory=dict)

    @property
    def gives_numbers(self) -> bool:
        """Whether its outputs are numbers in the units of the data, and no classes' logits."""
        return self.config is not None and self.config.objective.gives_numbers

    @property
    def image_size(self) -> tuple[int, int]:
        """(H, W)."""
        return models.input_shape(self.model)[:2]

    @property
    def channels(self) -> int:
        return self.model.channels

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the pixels that the model takes."""
        return np.dtype(self.reading.dtype.value)

    @property
    def name(self) -> str:
        """The last part of `ref`, for pictures: they may be published, so they name no folder."""
        return Path(self.ref.partition(":")[2]).name

    @property
    def checkpoint(self) -> str:
        """Which checkpoint of a run this is, in words; "" of a file."""
        best = f", best by {self.best_by}" if self.best_by else ""
        return "" if self.step is None else f"step {self.step:,}{best}"


def load(
    ref: str,
    *,
    model: ModelConfig | None = None,
    overrides: Mapping[str, Any] | None = None,
    resize: ResizeRule = ResizeRule.AUTO,
    ema: bool | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    transform: TransformConfig | None = None,
    class_names: Sequence[str] = (),
    headless: bool = False,
) -> Trained:
    """Load a trained model: `load("runs/vit_mu_digits")`.

    Args:
        ref: "ckpt:DIR", "ckpt:DIR@STEP", "@best" or "@latest" of a run; "npz:FILE", "timm:FILE";
            "hub:USER/NAME", "hub:USER/NAME@REVISION" or "hub:./FOLDER"; or a path: a directory is
            a run's.
        model: the model of a file, such as `models.variant("vit_b16_384")`; not for a run. It
            replaces the model of a repository.
        overrides: fields of the model to change, {"image_size": (64,)}.
        resize: the rule by which tables are resized.
        ema: take a run's moving average; by default, if its checkpoints are ranked by it.
        mean, std, transform, class_names: replace the run's own or the published ones.
        headless: accept a file without a head, for features, such as DINO's and SigLIP's.

    Raises UserError: no such weights, or weights that do not fit.
    """
    found = describe(ref, model=model, ema=ema)
    found = with_model(found, models.with_fields(found.model, overrides or {}))
    if found.dtype.kind != "f":  # of bands in a unit of their own
        data.check_units("mean", mean)
        data.check_units("std", std)
    found = dataclasses.replace(
        found,
        mean=tuple(mean) or found.mean,
        std=tuple(std) or found.std,
        transform=transform or found.transform,
        class_names=named(class_names, found.model) if class_names else found.class_names,
    )
    return read_weights(found, resize=resize, headless=headless)


def describe(ref: str, *, model: ModelConfig | None = None, ema: bool | None = None) -> Trained:
    """Describe what `load` would load, without its weights.

    Raises UserError: no such weights, or a file without `model`, or a run with it; a repository
        without a network that is known here.
    """
    scheme, path = split(reference(ref))
    if scheme == CHECKPOINT:
        if model is not None:
            advice = "leave out the variant, or change single fields"
            raise UserError(f"{ref} is a run with its own model; {advice}")
        return _of_run(path, ema)
    if ema:
        raise UserError(f"{ref} holds no moving average to choose: only ckpt:DIR of a run does")
    if networks.is_repository(f"{scheme}:{path}"):
        return _of_repository(f"{scheme}:{path}", model)
    if model is None:
        advice = errors.setting("model=VARIANT")
        raise UserError(f"which model does {ref} hold? add {advice}, such as vit_b16_384")
    return _of_file(f"{scheme}:{path}", model)


def named_pair(name: str) -> "TwoTowers | None":
    """Return the pair of towers of a name; None for a name of one network.

    Raises UserError: an unknown pair, with the nearest valid ones.
    """
    if not name.startswith(models.PAIRS):
        return None
    from vit_jax.models import two_towers  # late: most models have no texts

    return two_towers.variant(name)


def with_model(found: Trained, model: ModelConfig) -> Trained:
    """Replace the model, and the fields that depend on it.

    Raises UserError: the model is not valid.
    """
    models.create(model)  # which checks it
    if found.config is None:
        names = found.class_names if model.num_classes == found.model.num_classes else ()
        names = found.class_names if found.head else named(names, model)
        same = {"ref": found.ref, "class_names": names, "loss": found.loss, "head": found.head}
        same |= {"towers": found.towers, "tokenizer": found.tokenizer}
        return dataclasses.replace(_of_file(found.source, model), **same)
    found = dataclasses.replace(
        found, mean=per_channel(found.mean, model), std=per_channel(found.std, model)
    )
    if model.num_classes == found.model.num_classes:
        return dataclasses.replace(found, model=model)
    return dataclasses.replace(found, model=model, class_names=named((), model))


def changes(trained: Trained) -> list[str]:
    """List changes of the run's config, "model.image_size=(64,)", which its metrics do not have.

    The only change of a published file is its test-time augmentation.
    """
    cfg, tta = trained.config, [f"tta={','.join(trained.tta)}"] if trained.tta else []
    if cfg is None:
        return tta
    pairs = {"model": (cfg.model, trained.model), "transform": (_transform(cfg), trained.transform)}
    found = [
        f"{name}.{field.name}={getattr(new, field.name)}"
        for name, (old, new) in pairs.items()
        for field in dataclasses.fields(new)
        if getattr(old, field.name) != getattr(new, field.name) and not is_free(new, field.name)
    ]
    own = {"mean": cfg.data.mean, "std": cfg.data.std}
    found += [f"{k}={getattr(trained, k)}" for k, v in own.items() if getattr(trained, k) != v]
    return found + tta


def with_tta(trained: Trained, names: Sequence[str]) -> Trained:
    """Average predictions over copies of each image; raises UserError: an unknown kind of copy."""
    for name in names:
        if name not in tuple(Tta):
            raise errors.unknown("tta", name, Tta)
    return dataclasses.replace(trained, tta=tuple(map(Tta, names)))


def title(trained: Trained) -> str:
    """Describe a model in one line: its weights, its checkpoint, changes of its run's config."""
    step = f", {trained.checkpoint}" if trained.checkpoint else ""
    changed = f", with {', '.join(changes(trained))}" if changes(trained) else ""
    return f"{trained.ref}{step}{', moving average' if trained.ema else ''}{changed}"


def of_one_size(trained: Trained) -> Trained:
    """Return a model whose images are all brought to one size, for what has no rows of patches.

    The others than those that keep their shapes (docs/naflex.md) are as they were.
    """
    if not data.is_native(trained.transform):
        return trained
    plain = TransformConfig(crop=Crop.RESIZE, resize=trained.transform.resize)
    return dataclasses.replace(trained, transform=plain)


def _of_file(ref: str, model: ModelConfig) -> Trained:
    published = preprocessing(ref, model)
    names = () if networks.is_repository(ref) else networks.class_names(ref)
    return Trained(
        ref=ref,
        source=ref,
        model=model,
        class_names=named(names if len(names) == model.num_classes else (), model),
        **{key: getattr(published, key) for key in ("mean", "std", "transform", "reading")},
    )


def _of_repository(ref: str, model: ModelConfig | None) -> Trained:
    network = networks.network(ref)
    if model is None:
        models.create(network.model)  # which checks it
    found = _of_file(network.source, model or network.model)
    count = found.model.num_classes
    names = network.class_names if len(network.class_names) == count else ()
    names = named(names, found.model)
    if network.head:
        numbers = tuple(f"class {i}" for i in range(getattr(network.head, "num_classes", 0)))
        names = network.class_names or numbers
    same = {"ref": ref, "class_names": names, "loss": network.loss, "head": network.head}
    return dataclasses.replace(found, **same)


def read_weights(
    trained: Trained, *, resize: ResizeRule = ResizeRule.AUTO, headless: bool = False
) -> Trained:
    """Read the weights into the model, bringing tables and patch kernels to its size.

    With `headless` a file without a head is accepted, for features.

    Raises UserError: weights that do not fit.
    """
    ref, model = trained.source, trained.model
    if trained.head is not None and not headless:
        raise UserError(
            f"{trained.ref} says what each pixel is, and no class of an image: `predict`, "
            "`evaluate`, `export`, `serve` and `visualize --pixels` take it whole, `probe` its "
            "features, and training starts from it by init.weights"
        )
    if not model.num_classes and not headless:
        raise UserError(_no_head(trained.ref))
    try:
        found = weights.read(ref, model, resize=resize, ema=trained.ema, headless=headless)
    except OtherHead as error:
        if error.lacking:
            raise UserError(_no_head(trained.ref)) from None
        advice = errors.setting("model.num_classes=K")
        raise UserError(f"{error}, such as by {advice}") from None
    leaves = trees.named_leaves(models.abstract(model)) if headless else ()
    lacking = {name: np.zeros(leaf.shape, np.float32) for name, leaf in leaves if name not in found}
    variables = trees.nest({**lacking, **found})
    if trained.config is not None and not lacking:
        variables = trained.config.objective.put_back(variables)
    has_head = not lacking and model.num_classes > 0
    return dataclasses.replace(trained, variables=variables, has_head=has_head)


def _no_head(ref: str) -> str:
    return (
        f"{ref} holds a network without a head, and so no classes: `probe`, `visualize` and "
        "`export` use its features, and training starts from it by init.weights"
    )


def reference(ref: str) -> str:
    """Write a plain path as a reference: a directory is a run, the suffix tells a file's kind."""
    path = Path(os.path.expanduser(ref))
    directory = Path(os.path.expanduser(ref.rpartition("@")[0] or ref))
    if ref and (path.is_dir() or directory.is_dir()):
        return f"{CHECKPOINT}:{ref}"
    kinds = {*_SUFFIXES.values(), CHECKPOINT, *KINDS}
    if path.suffix in _SUFFIXES and ref.partition(":")[0] not in kinds:
        return f"{_SUFFIXES[path.suffix]}:{ref}"
    if bucket_folder.address(ref):
        return f"{CHECKPOINT}:{ref}"
    if ":" not in ref:
        raise UserError(
            f"{ref!r} is neither a run's directory nor a file of weights "
            f"({', '.join(_SUFFIXES)}); give ckpt:DIR, npz:FILE, timm:FILE or hub:USER/NAME"
        )
    return ref


def _of_run(place: str, ema: bool | None) -> Trained:
    from vit_jax.weights.readers.ckpt import Checkpoint

    found = Checkpoint(place)
    cfg = config_json.from_json(found.metadata["config"])
    if ema and not cfg.ema_decay:
        why = f"keeps no moving average (ema_decay=0); leave {errors.setting('ema')} out"
        raise UserError(f"{place} {why}")
    if ema is False and cfg.objective.needs_average:
        raise UserError(f"{place}: its model is its average; leave {errors.setting('ema')} out")
    if ema is None and not (ema := cfg.objective.needs_average):
        ema = bool(cfg.ema_decay) and cfg.checkpoint.metric.partition("/")[0].endswith("_ema")
    names = found.metadata.get("class_names", ())
    head = cfg.objective.pixel_head
    networks.check_size(found.model, place)
    if not min(cfg.data.std, default=0) > 0:
        raise UserError(f"{place}: data.std={cfg.data.std} must be above 0; it is damaged")
    metric, named_step = cfg.checkpoint.metric, place.endswith(("@latest", f"@{found.step}"))
    ranked = cfg.checkpoint.keep_best and metric in found.metrics and not named_step
    return Trained(
        ref=f"{CHECKPOINT}:{place}",
        source=f"{CHECKPOINT}:{found.directory}@{found.step}",
        model=found.model,
        mean=cfg.data.mean,
        std=cfg.data.std,
        transform=_transform(cfg),
        reading=data.reading(cfg.data),
        class_names=classes.readable(tuple(names) if head else named(names, found.model)),
        loss=cfg.objective.head_loss or Loss.SOFTMAX,
        head=head,
        ema=ema,
        config=cfg,
        step=found.step,
        best_by=metric if ranked else "",
        metrics=found.metrics,
    )


def _transform(cfg: Config) -> TransformConfig:
    """Return the transform of the evaluation that ranks a run's checkpoints, or of the first."""
    ranking = cfg.checkpoint.metric.partition("/")[0].removesuffix("_ema")
    chosen = cfg.evals.get(ranking) or next(iter(cfg.evals.values()), None)
    return chosen.transform if chosen else TransformConfig()


def named(names: Sequence[str], model: ModelConfig) -> tuple[str, ...]:
    """Return the names of all K classes; raises UserError: `names` has another length."""
    count = model.num_classes
    if not count:
        return ()
    if not names and count == classes.NUM_CLASSES:
        return tuple(classes.names_by_synset().values())
    if not names:
        return tuple(f"class {i}" for i in range(count))
    if len(names) != count:
        raise UserError(f"{len(names)} class names for a model of {count} classes")
    return tuple(names)


def describe_input(trained: Trained) -> str:
    """Describe in one line how images are prepared for a published file, and by which source.

    "" for a run, whose config has it.
    """
    if trained.config is not None:
        return ""
    published = preprocessing(trained.source, trained.model)
    transform, (height, width) = trained.transform, trained.image_size
    crop = transform.crop.value
    if transform.crop in (Crop.CENTER, Crop.SQUASH_CENTER):
        crop += f" {transform.crop_ratio:.4g}"
    if transform.crop is Crop.CENTER:
        crop += f" ({transform.crop_rule.value})"
    if transform.lengths:
        crop += f", at most {transform.lengths[0]} patches"
    mean, std = (",".join(f"{x:.6g}" for x in values) for values in (trained.mean, trained.std))
    used = {key: getattr(trained, key) for key in ("mean", "std", "transform")}
    changed = [key for key, value in used.items() if value != getattr(published, key)]
    but = f", but for {' and '.join(changed)}" if changed else ""
    other = ""
    if published.size not in (None, trained.image_size):
        other = " (published for {}x{})".format(*published.size)
    return (
        f"images: {height}x{width}{other}, {crop}, {transform.resize.value}, mean {mean}, "
        f"std {std}; from {published.source}{but}"
    )
