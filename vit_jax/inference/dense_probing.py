# SPDX-License-Identifier: Apache-2.0
"""Probes of a trained model's patches: how well they segment images (docs/probe.md)."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float, Float32, UInt8

from vit_jax import models
from vit_jax.data import Reading, Source, account, normalize
from vit_jax.data.images import ops
from vit_jax.data.sources.base import account_of, split_of
from vit_jax.data.sources.dense.masks import IGNORED, open_masks, pixels_of
from vit_jax.errors import UserError
from vit_jax.evals.passes import Pass, watched
from vit_jax.evals.probes import knn, segmentation
from vit_jax.evals.probes.features import encode_all, feature_shapes
from vit_jax.evals.probes.segmentation import BATCH, Segmentation
from vit_jax.inference.evaluate import placed
from vit_jax.inference.forward import Layers
from vit_jax.inference.trained import Trained
from vit_jax.models.intermediates import output_and_layers
from vit_jax.process import waiting

PREFIX = "masks:"  # of a dataset's name
METHODS = ("patch_knn", "linear_head")
CONSTANT = "constant"  # a baseline: predicts the commonest class everywhere


class Patches(NamedTuple):
    """The patches of a split's images, and the classes of the pixels that the model saw."""

    tokens: Float32[np.ndarray, "N P Q D"]
    masks: UInt8[np.ndarray, "N H W"]


class Shown(NamedTuple):
    """A test image with its masks, true and predicted, for a picture."""

    image: UInt8[np.ndarray, "H W C"]
    truth: UInt8[np.ndarray, "H W"]
    predicted: Mapping[str, UInt8[np.ndarray, "H W"]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How the probes are fitted.

    Attributes:
        methods: a selection of METHODS.
        k: patch_knn's numbers of neighbours, each tried alone; () is 30, or all if there are fewer.
        temperature: of the neighbours' votes.
        steps, lr: linear_head's updates and highest learning rate.
        seed: of all random draws.
    """

    methods: Sequence[str]
    k: Sequence[int]
    temperature: float
    steps: int
    lr: float
    seed: int


def open_splits(dataset: str, *splits: str) -> list[Source]:
    """Open the splits of "masks:DIR" to learn from and to test on.

    Raises UserError: no such dataset or split.
    """
    found: list[Source] = []
    for part, split in zip(("train", "test"), splits, strict=True):
        with split_of(f"--{part}_split"):
            found.append(open_masks(dataset.removeprefix(PREFIX), split))
    account.tell(found[0].name, account_of(found[0]))
    return found


def read_patches(
    trained: Trained, source: Source, layers: Layers, mesh: Mesh, *, batch_size: int
) -> Patches:
    """Resize every image and its mask to the model's size, uncropped, and encode the image.

    The tokens of several `layers` are joined along D. Without `layers` they are the last layer's,
    normalised if the network does so.

    Raises UserError: a file that cannot be read, layers whose patches lie in different grids.
    """
    height, width, channels = models.input_shape(trained.model)
    encode = _encoder(trained.model, tuple(trained.mean), tuple(trained.std), layers)
    variables = placed(trained, mesh)
    shape = feature_shapes(encode, variables, (height, width, channels))["features"]
    tokens = np.empty((len(source), *shape), np.float32)
    masks = np.full((len(source), height, width), IGNORED, np.uint8)

    def batches(size: int) -> Pass:
        for start in range(0, len(source), size):
            batch = {
                "image": np.zeros((size, height, width, channels), np.uint8),
                "mask": np.zeros(size, np.float32),
            }
            for row, index in enumerate(range(start, min(start + size, len(source)))):
                image, mask = pixels_of(source, index, channels, trained.reading)
                batch["image"][row] = ops.resize(image, (height, width), trained.transform.resize)
                batch["mask"][row], masks[index] = 1, _nearest(mask, (height, width))
            yield batch

    start = watched(batches, len(source), source.name)
    what = {"mesh": mesh, "batch_size": batch_size, "name": source.name}
    encode_all(encode, variables, start, {"features": tokens}, **what)
    return Patches(tokens, masks)


@functools.lru_cache  # the same function object each time, so that jit finds its program
def _encoder(
    model: models.ModelConfig, mean: tuple[float, ...], std: tuple[float, ...], layers: Layers
) -> Callable[[Any, Mapping[str, jax.Array]], jax.Array]:
    def encode(variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        image = normalize(batch["image"], mean, std)
        norm = layers.norm if layers.numbers else None
        found = output_and_layers(model, variables, image, layers.numbers or 1, norm=norm)[1]
        grids = {layer.patches.shape[1:3] for layer in found}
        if len(grids) > 1:
            raise UserError(f"--layers of different grids, {sorted(grids)}; choose one of them")
        return jax.numpy.concatenate([layer.patches for layer in found], axis=-1)

    return encode


def _nearest(mask: UInt8[np.ndarray, "H W"], size: tuple[int, int]) -> UInt8[np.ndarray, "P Q"]:
    """Resize a mask: each new pixel has the class at its centre."""

    def centres(new: int, old: int) -> np.ndarray:
        return (2 * np.arange(new) + 1) * old // (2 * new)

    return mask[centres(size[0], mask.shape[0])[:, None], centres(size[1], mask.shape[1])]


def count_classes(train: Source, patches: Patches) -> int:
    """Return K, the number of classes; raises UserError: all pixels are of one."""
    known = patches.masks[patches.masks != IGNORED]
    if len(np.unique(known)) < 2:
        raise UserError(f"{train.name} has pixels of a single class; a probe needs two")
    return train.num_classes


def run(
    settings: Settings,
    train: Patches,
    test: Patches,
    source: Source,
    num_classes: int,
    mesh: Mesh,
    *,
    num_shown: int,
    channels: int,
    reading: Reading,
) -> tuple[list[Segmentation], list[Shown]]:
    """Fit the probes to the training patches, and score them at the test images' own size.

    Args:
        settings: of the probes.
        train, test: the patches of both splits.
        source: the test split, with images and masks of their own size.
        num_classes: K.
        mesh: the devices of patch_knn.
        num_shown: how many test images to return, evenly spaced.
        channels: of those images.
        reading: the rules by which those images are read.

    Raises UserError: a k above the number of patches, or no test pixel of a class.
    """
    scorers, details = _fit(settings, train, num_classes, mesh)
    counts = {name: np.zeros((num_classes, num_classes), np.int64) for name in scorers}
    every = np.linspace(0, len(source) - 1, min(num_shown, len(source))).round()
    pictures = []
    for start in range(0, len(source), BATCH):
        tokens = test.tokens[start : start + BATCH]
        scores = {name: score(tokens) for name, score in scorers.items()}
        for row in range(len(tokens)):
            image, truth = pixels_of(source, start + row, channels, reading)
            predicted = {
                name: segmentation.enlarge(found[row], truth.shape)
                for name, found in scores.items()
            }
            for name, mask in predicted.items():
                counts[name] += segmentation.confusion(truth, mask, num_classes)
            if start + row in every:
                del predicted[CONSTANT]
                pictures.append(Shown(image, truth, predicted))
    if not counts[CONSTANT].any():
        raise UserError(f"{source.name} has no labelled pixel")
    results = [Segmentation(*details[name], counts[name]) for name in scorers]
    return results, pictures


Scorer = Callable[[Float[np.ndarray, "B P Q D"]], Float32[np.ndarray, "B P Q K"]]


def _fit(
    settings: Settings, train: Patches, num_classes: int, mesh: Mesh
) -> tuple[dict[str, Scorer], dict[str, tuple[str, dict[str, Any]]]]:
    """Return functions that score patches, by their captions, and their methods and settings."""
    counts = np.bincount(train.masks[train.masks != IGNORED], minlength=num_classes)
    always = (counts == counts.max()).astype(np.float32)
    scorers: dict[str, Scorer] = {
        CONSTANT: lambda tokens: np.broadcast_to(always, (*tokens.shape[:-1], num_classes)).copy()
    }
    details = {CONSTANT: (CONSTANT, {"class": int(counts.argmax())})}
    if "patch_knn" in settings.methods:
        bank = knn.Bank(*train, num_classes, settings.seed)
        for k in settings.k or (min(knn.PATCH_K, len(bank.tokens)),):
            if k > (count := len(bank.tokens)):
                raise UserError(f"k={k}: there are {count:,} patches; choose a smaller k")
            name, votes = f"patch_knn, k {k}", {"k": k, "temperature": settings.temperature}
            scorers[name] = functools.partial(bank.scores, **votes, mesh=mesh)
            details[name] = "patch_knn", votes
    if "linear_head" in settings.methods:
        how = {"steps": settings.steps, "lr": settings.lr}
        with waiting.said(f"training the linear head, {settings.steps:,} steps"):
            head = segmentation.fit(*train, num_classes, **how, seed=settings.seed)
        scorers["linear_head"], details["linear_head"] = head.scores, ("linear_head", how)
    return scorers, details
