# SPDX-License-Identifier: Apache-2.0
"""Pretraining that goes on from published weights, or a finished run, on images of one's own.

What is learned follows from the weights, since a network learns on best as it learned before: of
DINO's kind by DINO (v2, v3 and iBOT: with hidden patches), an MAE's by MAE, of I-JEPA and LeJEPA by
these, a run of one's own by its own objective. Any other network, of labels or of captions, by
DINO, which asks nothing of how it was trained. Steps, rate and what stays as it is follow from the
number of images and the width of the network. The rules are common sense, not tuned: they do little
with few images, since features are lost sooner than gained.
"""

import dataclasses
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from vit_jax import data, models, objectives
from vit_jax.config import saved
from vit_jax.config.tree import Config
from vit_jax.data import Crop, DataConfig, MixConfig, Resize, TransformConfig
from vit_jax.errors import UserError, setting, shown
from vit_jax.evals import EvalConfig, FeaturesEval, KNNEval, LossEval
from vit_jax.models import ModelConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.objectives import DinoConfig, ObjectiveConfig
from vit_jax.optim import OptimConfig
from vit_jax.recipes import unlabelled
from vit_jax.weights.config import CHECKPOINT, InitConfig, split
from vit_jax.weights.published import describe, table, timm_config
from vit_jax.weights.published.table import Preprocessing
from vit_jax.weights.readers import repository
from vit_jax.weights.readers.ckpt import Checkpoint

# Peak rate of a batch of 128 and a width of 384, by objective: a tenth of what a start from random
# parameters takes, and for MAE, whose loss does not lead the features astray, a third.
_RATES = {"dino": 5e-5, "lejepa": 1e-4, "ijepa": 1e-4, "mae": 3e-4, "mpp": 1e-4}
_FROZEN = ((1_000, 0.75), (10_000, 0.5))  # below so many images, this share of the first blocks
_EPOCHS, _LEAST, _MOST = 20, 500, 20_000  # the duration, and its bounds in steps
_SIDE = 256  # larger images are learned from at most at this side
# The words of a name that tell how a network was trained, the first that is there.
_KINDS = (
    ("lejepa", "lejepa"),
    ("ijepa|jepa", "ijepa"),
    (r"mae\w*|\w*vit_?mae", "mae"),
    (r"dino\w*|ibot", "dino"),
)
_WAIT = "10%"  # of the run, in which new heads learn alone


class Origin(NamedTuple):
    """What the weights are of.

    Attributes:
        model: the network, without a head.
        images: how images are prepared for it.
        kind: of `_RATES`, what it learned by; "" where that is none of them, or not known.
        why: how that is known, in words.
        words: what the weights are called.
        has_head: whether they hold a head of classes, which is left.
        run: the config of a run of one's own; None of a published file.
    """

    model: ModelConfig
    images: Preprocessing
    kind: str
    why: str
    words: str = ""
    has_head: bool = False
    run: Config | None = None


class Course(NamedTuple):
    """What follows from the number of images and the network's size.

    Attributes:
        batch: images a step.
        steps: in all.
        lr: the peak learning rate.
        frozen: blocks from the first on that stay as they are; with them what lies before them.
    """

    batch: int
    steps: int
    lr: float
    frozen: int


def images(given: Mapping[str, str]) -> Config:
    """Continue from `init.weights` on the images of `data.name`; without weights, train by MAE.

    `given` are the fields that the command line sets, by their paths, and "workdir". A run that is
    continued keeps the config with which it began, whatever has become of weights and images since.
    The lines that are printed say what was chosen, and why.

    Raises UserError: no such images or weights, or weights of a network that is not known.
    """
    ref = given.get("init.weights", "")
    if not ref or not given.get("data.name"):
        return unlabelled.images("mae")  # without images the check of the config refuses it
    if begun := _begun(given, ref):
        return begun
    origin = _origin(ref, given)
    count = _count(given)
    config, name = _config(origin)
    chosen = plan(count, origin.model, name)
    _fit(config, origin, chosen, name)
    config.init = InitConfig(weights=ref, skip=("^head",) if origin.has_head else ())
    print("\n".join(_told(ref, origin, name, count, chosen, config)), flush=True)
    return config


def plan(count: int, model: ModelConfig, name: str) -> Course:
    """Choose batch, duration, rate and what is frozen for `count` images and an objective."""
    batch = 2 ** int(math.log2(min(max(count / 8, 8), 128)))
    steps = min(max(_EPOCHS * count // batch, _LEAST), _MOST)
    width, depth = getattr(model, "dim", 384), getattr(model, "depth", 0)
    lr = _RATES[name] * math.sqrt(batch / 128) * math.sqrt(384 / width)
    share = next((share for most, share in _FROZEN if count < most), 0.0)
    return Course(batch, steps, float(f"{lr:.2g}"), int(share * depth))


def kind_of(words: str) -> str:
    """Return how a network was trained by words of its name, "facebook/dinov2-small"; "" unknown.

    A model that was fine-tuned on labels still counts as what it was first.
    """
    parts = [part for part in re.split(r"[^a-z0-9]+|_", words.lower()) if part]
    for pattern, kind in _KINDS:
        if any(re.fullmatch(pattern, part) for part in parts):
            return kind
    return ""


def _begun(given: Mapping[str, str], ref: str) -> Config | None:
    """Return the config of the run in the workdir if it began from the same weights; else None."""
    place = Path(os.path.expanduser(given.get("workdir", "")), "config.json")
    if not given.get("workdir") or "://" in given["workdir"] or not place.is_file():
        return None
    config = saved.load(place, None)
    return config if config.init.weights == ref else None


def _count(given: Mapping[str, str]) -> int:
    usual = DataConfig()
    name, directory = given["data.name"], given.get("data.data_dir", usual.data_dir)
    bands = tuple(filter(None, given.get("data.bands", "").split(",")))
    split = given.get("data.train_split", usual.train_split)
    source = data.open_source(name, directory, split, bands=bands)
    return len(source)


def _origin(ref: str, given: Mapping[str, str]) -> Origin:
    """Read what network the weights hold; raises UserError: it is not known."""
    kind, path = split(ref)
    if kind == CHECKPOINT:
        return _of_run(path)
    if describe.is_repository(ref):
        network = describe.network(ref)
        words = f"{path} {_described(path)}"
        model = network.model
    else:
        name = re.sub(r"\.(safetensors|pth|pt|bin|npz)$", "", Path(path).name)
        known_as = table.named(Path(path).name) or table.named(name)
        found = timm_config.by_name(known_as[0] if known_as else name)
        if found is None:
            known = "rename it as timm calls its network"
            run = f"{setting('config')}=unlabelled_folder:mae, and its network, "
            raise UserError(
                f"init.weights={ref}: which network is that? {known}, or name a run, {run}"
                f"{setting('config.model=VARIANT')}",
                field="init.weights",
            )
        model, words = found[0], f"{name} {found[1]['name']}"
    prepared = describe.preprocessing if describe.is_repository(ref) else table.preprocessing
    images = prepared(ref, model)
    learned = kind_of(words)
    why = f"{path} names it" if learned else "what it learned by is not known"
    headless = models.with_fields(model, {"num_classes": 0})
    return Origin(headless, images, learned, why, words, model.num_classes > 0)


def _described(path: str) -> str:
    """Return what a repository's config.json calls its network."""
    tree = repository.opened(path).json(repository.CONFIG) or {}
    return " ".join(str(tree.get(key, "")) for key in ("model_type", "architecture"))


def _of_run(path: str) -> Origin:
    config = saved.from_json(Checkpoint(path).metadata["config"])
    own = {v: k for k, v in objectives.OBJECTIVES.items()}
    names = {"DinoConfig": "dino", "MaeConfig": "mae", "MaskedPatchConfig": "mpp"}
    names |= {own[name]: name for name in ("lejepa", "ijepa")}
    learned = names.get(type(config.objective).__name__, "")
    plain = next((each.transform for each in config.evals.values()), TransformConfig())
    reading = data.reading(config.data)
    images = Preprocessing(config.data.mean, config.data.std, plain, None, "that run", reading)
    why = "that run's own" if learned else "that run had labels or captions"
    model = models.with_fields(config.model, {"num_classes": 0})
    has_head, begun = config.model.num_classes > 0, config if learned else None
    return Origin(model, images, learned, why, path, has_head, begun)


def _config(origin: Origin) -> tuple[Config, str]:
    """Return a config with the objective and its views, and the name of the objective."""
    if origin.run is not None:
        begun, config = origin.run, unlabelled.images("mae")
        config.model, config.objective = origin.model, begun.objective
        config.data = dataclasses.replace(begun.data, name="", data_dir="", mix=MixConfig())
        config.data.train_split, config.data.classes = DataConfig().train_split, ()
        config.ema_decay, config.ema_decay_end = begun.ema_decay, begun.ema_decay_end
        return config, origin.kind
    name = origin.kind or "dino"
    if name == "mae" and getattr(origin.model, "rope", None) not in (None, "", "none"):
        name = "dino"  # an encoder of a part of the patches does not know their places
    config = unlabelled.images(name)
    config.model = _sized(origin.model, name)
    side = models.input_shape(config.model)[0]
    step = models.pair(getattr(config.model, "patch", (16,)), "patch")[0]
    half = max(side // 2 // step, 1) * step
    own = config.objective
    if hasattr(own, "small_size"):
        setattr(own, "small_size", (half, half))  # noqa: B010, of two classes
    if isinstance(own, DinoConfig) and re.search(r"dinov[23]|ibot", origin.words.lower()):
        own.patch_weight = 1.0
        own.patch_head = dataclasses.replace(own.head)
    return config, name


def _sized(model: ModelConfig, name: str) -> ModelConfig:
    """Return the network at a side that training can afford, reading what the objective trains."""
    fields: dict[str, object] = {}
    side = max(models.input_shape(model)[:2])
    step = models.pair(getattr(model, "patch", (16,)), "patch")[0]
    if side > _SIDE:
        fields["image_size"] = (224 // step * step,) * 2
    if name in ("dino", "lejepa") and hasattr(model, "dynamic_image_size"):
        fields["dynamic_image_size"] = True
    if name in ("mae", "ijepa") and hasattr(model, "pool"):
        fields["pool"] = Pool.GAP  # these train no class token
    return models.with_fields(model, fields)


def _fit(config: Config, origin: Origin, chosen: Course, name: str) -> None:
    """Set how long and how fast the network learns on, and what is measured meanwhile."""
    config.data.batch_size, config.duration = chosen.batch, f"{chosen.steps} steps"
    config.data.mean, config.data.std = origin.images.mean, origin.images.std
    new = _new(config)
    config.optim = OptimConfig(
        lr=chosen.lr, weight_decay=0.04, warmup="10%", clip_norm=1.0, layer_decay=0.8
    )
    if chosen.frozen:
        first = "|".join(str(i) for i in range(chosen.frozen))
        config.optim.freeze = f"^(patch_embed|pos_embed|cls_token|reg_token|blocks/({first})/)"
        config.optim.layer_decay = 1.0
    if new and origin.run is None:
        ours = "|".join(new)
        config.optim.lr_multipliers = ((f"^({ours})(/|$)", 10.0),)
        config.optim.hold, config.optim.hold_for = f"^(?!({ours})(/|$))", _WAIT
    if config.objective.needs_average and origin.run is None:
        config.ema_decay, config.ema_decay_end = 0.99, 1.0
    plain = TransformConfig(crop=Crop.RESIZE, resize=Resize.BICUBIC)
    near = {"train_split": "train", "k": (5,), "where_labelled": True}
    found: dict[str, EvalConfig] = {
        "knn": KNNEval(split="val", every="10%", transform=plain, **near),
        "features": FeaturesEval(split="val", every="10%", transform=plain),
    }
    if config.objective.scores_images:
        found["val"] = LossEval(split="val", every="10%", transform=plain)
    config.evals = found
    config.checkpoint.every, config.checkpoint.keep_best = "10%", 0


def _new(config: Config) -> tuple[str, ...]:
    """Return the first components of the names of what the objective trains beside the network."""
    cfg: ObjectiveConfig = config.objective
    return tuple(objectives.create(cfg, config.model, config.data).own_parameters)


def _told(
    ref: str, origin: Origin, name: str, count: int, chosen: Course, config: Config
) -> list[str]:
    """Return the lines that tell what was chosen and why."""
    model = config.model
    family = type(model).__name__.removesuffix("Config")
    side, _, _ = models.input_shape(model)
    size = f"{family} of width {getattr(model, 'dim', '?')}, {side} pixels"
    title = {"mae": "MAE", "dino": "DINO", "lejepa": "LeJEPA", "ijepa": "I-JEPA", "mpp": "MPP"}
    patches = " and iBOT" if getattr(config.objective, "patch_weight", 0) else ""
    epochs = chosen.steps * chosen.batch / count
    lines = [
        f"continuing {shown(ref)} ({size}) by {title[name]}{patches}: {origin.why}",
        f"  {count:,} images: {chosen.steps:,} steps of {chosen.batch}, {epochs:.3g} epochs; "
        f"learning rate {chosen.lr:g}",
    ]
    if chosen.frozen:
        lines.append(
            f"  the first {chosen.frozen} of {getattr(model, 'depth', 0)} blocks stay as they are: "
            "so few images would rather spoil than better them"
        )
    if config.optim.hold:
        lines.append(f"  in the first {_WAIT} only what is new learns: {', '.join(_new(config))}")
    lines.append("  another choice: --config.optim.lr=..., --config.duration=..., optim.freeze=''")
    return lines
