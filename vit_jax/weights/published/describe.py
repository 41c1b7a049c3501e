# SPDX-License-Identifier: Apache-2.0
"""What a published network is and how its images are prepared, by its files."""

import contextlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from vit_jax import models
from vit_jax.data import Crop, TransformConfig
from vit_jax.errors import UserError
from vit_jax.models import HybridConfig, ModelConfig
from vit_jax.models.losses import Loss
from vit_jax.models.two_towers import TwoTowers
from vit_jax.weights.config import KINDS, added, split
from vit_jax.weights.layout import Shape
from vit_jax.weights.names import hf_config
from vit_jax.weights.published import hf_images, pairs, timm_config
from vit_jax.weights.published import table as published
from vit_jax.weights.published.table import Preprocessing
from vit_jax.weights.readers import repository
from vit_jax.weights.readers.repository import CONFIG, Repository


class Network(NamedTuple):
    """A network of a repository, without its weights."""

    source: str  # a reference to the commit from which the rest was read
    model: ModelConfig
    class_names: tuple[str, ...]  # K names; none if the repository lists none
    loss: Loss  # what it was trained with
    head: Any = (
        None  # what is beside the model where every pixel counts, an `EomtHead` or `DptConfig`
    )


def is_repository(ref: str) -> bool:
    """Return whether a reference is to a repository, which says what network it holds."""
    return split(ref)[0] in KINDS


def network(ref: str) -> Network:
    """Describe the network of "hub:USER/NAME[@REVISION]" or "hub:./FOLDER".

    timm's repositories, transformers' ViTs and exports of this package are told apart by their
    config.json. The model takes images of the size that its preprocessing makes.

    Raises UserError: no such repository, or one of no network here; one line says which file of it
        and which value.
    """
    (ref, backbone), head = added(ref), None
    scheme, path = split(ref)
    found = repository.opened(path)
    plus = f"+{backbone}" if backbone else ""
    if (both := _open_clip(found)) is not None:
        return Network(f"{scheme}:{found.ref}", both.image, (), Loss.SOFTMAX)
    source, tree = found.source(CONFIG), _config(found)
    if hf_config.is_transformers(tree):
        hf_config.Facts(tree, source)  # before a download of what is not known here
        with found.weights() as weights:
            cfg = hf_config.model(tree, weights.shapes, source)
            head = _head(tree, weights.shapes, source)
        count = getattr(head, "num_classes", cfg.num_classes)
        names, loss = hf_config.class_names(tree, count, source), _loss(tree)
        if (prepared := _hf_images(found)) and prepared.size:
            cfg = models.with_fields(cfg, {"image_size": _fitting(prepared.size, cfg)})
    elif own := _exported(found):
        cfg, loss = own.model, own.loss
        names = timm_config.class_names(tree, cfg.num_classes, source)
    else:
        cfg, loss = timm_config.model(tree, source), Loss.SOFTMAX
        names = timm_config.class_names(tree, cfg.num_classes, source)
    check_size(cfg, source)
    return Network(f"{scheme}:{found.ref}{plus}", cfg, names, loss, head)


def _head(tree: Mapping[str, Any], shapes: Mapping[str, Shape], source: str) -> Any:
    """Return what a repository of transformers' has beside an encoder; None for nothing."""
    if tree.get("model_type") in hf_config.DENSE:
        from vit_jax.weights.names import hf_depth  # late: most weights have nothing beside them

        return hf_depth.config(tree, hf_config.model(tree, shapes, source), source)
    if not str(tree.get("model_type")).startswith("eomt"):
        return None
    from vit_jax.weights.names import eomt  # late: most weights have nothing beside them

    return eomt.head(tree, shapes, source)


def pair(ref: str) -> TwoTowers:
    """Describe the two towers of a repository.

    Raises UserError: no such repository, or one without a text tower that is here.
    """
    found = repository.opened(split(ref)[1])
    if (both := _open_clip(found)) is not None:
        return both
    tree = _config(found)
    if not (hf_config.is_transformers(tree) and pairs.is_pair(tree)):
        raise UserError(f"{found.name} holds an image tower alone: its {CONFIG} names no texts'")
    with found.weights() as weights:
        shapes = weights.shapes
    return pairs.transformers(tree, network(ref).model, shapes, found.source(CONFIG))


def _open_clip(found: Repository) -> TwoTowers | None:
    """Return the pair of a repository of open_clip's; None for one of another code's."""
    tree = found.json(pairs.OPEN_CLIP)
    return None if tree is None else pairs.open_clip(tree, found.source(pairs.OPEN_CLIP))


def class_names(ref: str) -> tuple[str, ...]:
    """Return the names of a head's classes, or () if they are not known.

    A config.json beside a file under timm's names may list them.
    """
    scheme, path = split(ref)
    with contextlib.suppress(UserError):  # a network, or classes, that are not known here
        if scheme in KINDS:
            return network(ref).class_names
        if scheme == "timm":
            about = published.about(path)
            names = about.get("label_names")
            count = about.get("num_classes", len(names) if isinstance(names, list) else 0)
            return timm_config.class_names({"pretrained_cfg": about}, count, ref)
    return ()


def check_size(cfg: ModelConfig, source: str) -> None:
    """Raise UserError for sizes that no network has: a stranger's file must not fill the memory."""
    sides = models.pair(cfg.image_size, "image_size")
    patch = models.pair(getattr(cfg, "patch", (16,)), "patch")
    if isinstance(cfg, HybridConfig):  # its patches are of a map
        patch = (16, 16)
    tokens = sides[0] * sides[1] // (patch[0] * patch[1])
    depth = max(getattr(cfg, "depth", 0), sum(getattr(cfg, "depths", ())))
    most = {"image_size": (max(sides), 2**14), "depth": (depth, 2**10), "patch": (tokens, 2**20)}
    most["channels"] = cfg.channels, 2**12
    for field, (found, limit) in most.items():
        if found > limit:
            what = "patches" if field == "patch" else field
            raise UserError(f"{source}: {what} of {found:,} are no network's; at most {limit:,}")


def _fitting(size: tuple[int, int], cfg: ModelConfig) -> tuple[int, ...]:
    """Return the size of prepared images, or the model's own where patches do not divide it."""
    patch = models.pair(getattr(cfg, "patch", (1,)), "patch")
    fits = all(side % step == 0 for side, step in zip(size, patch, strict=True))
    return size if fits else cfg.image_size


def preprocessing(ref: str, cfg: ModelConfig) -> Preprocessing:
    """Return the preprocessing of a published network, for a model that may be of another size.

    A repository's own files tell it; for a file `published.preprocessing` does. A model of images
    of any size sees them in their shapes, of as many patches as an image of its own size has.

    Raises UserError: a file of it that cannot be used.
    """
    found = _preprocessing(ref, cfg)
    if not all(models.native_patch(cfg)):
        return found
    rows, columns = models.patch_grid(cfg, models.input_shape(cfg)[:2])
    shape = {"crop": Crop.NATIVE, "lengths": (rows * columns,)}
    own = TransformConfig(**shape, resize=found.transform.resize)
    return found._replace(transform=own)


def _preprocessing(ref: str, cfg: ModelConfig) -> Preprocessing:
    if not is_repository(ref):
        return published.preprocessing(ref, cfg)
    found = repository.opened(split(added(ref)[0])[1])
    if (tree := found.json(pairs.OPEN_CLIP)) is not None:
        return pairs.open_clip_images(tree, cfg, found.source(pairs.OPEN_CLIP))
    tree = _config(found)
    if hf_config.is_transformers(tree):
        prepared = _hf_images(found)
        if prepared is None:
            why = f"{published.GUESS}: {found.name} holds no {hf_images.FILE}"
            return published.of_family(cfg)._replace(source=why)
    elif own := _exported(found):
        prepared = own.preprocessing
    else:
        about = tree.get("pretrained_cfg")
        source = found.source(CONFIG)
        return published.of_timm(about if isinstance(about, dict) else {}, source, cfg)
    per_channel = published.per_channel
    mean, std = (per_channel(x, cfg) for x in (prepared.mean, prepared.std))
    return prepared._replace(mean=mean, std=std)


def _config(found: Repository) -> Mapping[str, Any]:
    tree = found.json(CONFIG)
    if tree is None:
        raise UserError(
            f"{found.name} holds no {CONFIG}, which says what network it is; a file alone is read "
            "as timm:FILE with a model"
        )
    if "architecture" not in tree and "model_type" not in tree:
        raise UserError(
            f"{found.source(CONFIG)} names neither an architecture of timm's nor a model_type of "
            "transformers'"
        )
    return tree


def _hf_images(found: Repository) -> Preprocessing | None:
    tree = found.json(hf_images.FILE)
    return None if tree is None else hf_images.read(tree, found.source(hf_images.FILE))


def _exported(found: Repository) -> timm_config.Exported | None:
    tree = found.json(timm_config.EXPORT)
    return None if tree is None else timm_config.exported(tree, found.source(timm_config.EXPORT))


def _loss(tree: Mapping[str, Any]) -> Loss:
    several = tree.get("problem_type") == "multi_label_classification"
    return Loss.SIGMOID if several else Loss.SOFTMAX
