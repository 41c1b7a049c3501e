# SPDX-License-Identifier: Apache-2.0
"""What a trained pair of towers can be asked of images in files and of splits of datasets."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Float32

from vit_jax import evals, models
from vit_jax.data import DataConfig, Source
from vit_jax.devices import hardware, sharding
from vit_jax.errors import UserError
from vit_jax.evals import EvalConfig
from vit_jax.evals.base import Predictors
from vit_jax.evals.calibration import wilson
from vit_jax.evals.passes import watched
from vit_jax.evals.probes.features import encode_all
from vit_jax.inference import pairs
from vit_jax.inference.forward import make_apply, of_batch
from vit_jax.inference.pairs import Pair
from vit_jax.inference.trained import Trained, changes, read_weights
from vit_jax.inference.views import check_channels, file_batches
from vit_jax.models import two_towers
from vit_jax.weights.config import KINDS, split
from vit_jax.weights.published import describe

_explained = hardware.explained("lower the batch size, --batch_size=N")


class Embedded(NamedTuple):
    """Images of files as unit vectors.

    Attributes:
        files: those that could be read, in their order.
        vectors: a row for each.
        errors: what is wrong with the others, a line each.
    """

    files: list[str]
    vectors: Float32[np.ndarray, "N E"]
    errors: list[str]


class Match(NamedTuple):
    """An image that a text found; `probability` is of the pair alone, None without a bias."""

    file: str
    cosine: float
    probability: float | None


def has_texts(trained: Trained) -> bool:
    """Return whether there is a text tower beside a model, by its config or the pair named."""
    if trained.config is not None:
        return trained.config.objective.embeds_texts
    if trained.towers:
        return True
    if split(trained.source)[0] not in KINDS:
        return False
    try:
        describe.pair(trained.source)
    except UserError:
        return False
    return True


def read(trained: Trained) -> tuple[Trained, Pair]:
    """Read the weights of both towers; the text's first, which may not be there.

    Raises UserError: no text tower, no tokenizer, or weights that do not fit.
    """
    pair = pairs.load(trained)
    return read_weights(trained, headless=True), pair


def predictors(trained: Trained, pair: Pair) -> Predictors:
    """Return what embeds a batch's images and its tokens, by the names that a run's have."""
    apply, towers = make_apply(trained), pair.towers

    def images(variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        features = of_batch(apply, variables, batch).features
        return two_towers.embed_image(towers, variables["params"], features)

    def texts(variables: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        return two_towers.embed_text(towers, variables["params"], batch["tokens"])

    return {"image_embedding": images, "text_embedding": texts}


def both(trained: Trained, pair: Pair) -> dict[str, Any]:
    """Return the variables of both towers, as a run has them."""
    params = {**trained.variables["params"], **pair.params}
    return {**trained.variables, "params": params}


def _placed(trained: Trained, pair: Pair, mesh: Mesh) -> Any:
    variables = both(trained, pair)
    return jax.device_put(variables, sharding.shardings(variables, mesh))


@_explained
def embed_files(
    trained: Trained, pair: Pair, files: Sequence[str], *, batch_size: int = 32
) -> Embedded:
    """Embed image files, on all devices.

    Raises UserError: none of them can be read, or the model takes other images than files hold.
    """
    check_channels(trained)
    mesh = sharding.make_mesh(sharding.MeshConfig())
    kept: list[str] = []
    problems: list[str] = []
    vectors = np.empty((len(files), pair.towers.dim), np.float32)
    count = encode_all(
        predictors(trained, pair)["image_embedding"],
        _placed(trained, pair, mesh),
        watched(
            lambda size: file_batches(trained, files, size, kept, problems), len(files), "images"
        ),
        {"features": vectors},
        mesh=mesh,
        batch_size=min(batch_size, len(files)),
        name="the images",
    )
    if not count:
        raise UserError(f"none of {len(files):,} images could be read: {problems[0]}")
    return Embedded(kept, vectors[:count], problems)


def check_texts(texts: Sequence[str], what: str = "text") -> None:
    """Raise UserError for a text of nothing but blanks."""
    if not all(text.strip() for text in texts):
        raise UserError(f"an empty {what} finds nothing; write what the image shows")


def search(pair: Pair, images: Embedded, texts: Sequence[str], top: int) -> list[list[Match]]:
    """Return for each text the nearest images, the nearest first; of equal ones the first file.

    Raises UserError: an empty text.
    """
    check_texts(texts)
    vectors = pairs.embed_texts(pair, texts)
    logits = np.asarray(pairs.similarity(pair, images.vectors, vectors))
    found = []
    for text, column in zip(vectors, logits.T, strict=True):
        cosines = images.vectors @ text
        best = np.argsort(-cosines, kind="stable")[:top]
        chances = (0.5 + 0.5 * np.tanh(column.astype(np.float64) / 2)).tolist()  # a sigmoid
        own = chances if pair.towers.has_bias else [None] * len(chances)
        found.append([Match(images.files[i], float(cosines[i]), own[i]) for i in best])
    return found


def probabilities(
    pair: Pair, images: Float32[np.ndarray, "N E"], texts: Float32[np.ndarray, "T E"]
) -> Float32[np.ndarray, "N T"]:
    """Return how likely texts are: among each other (CLIP), or with a bias each alone (SigLIP)."""
    logits = pairs.similarity(pair, images, texts)
    chances = jax.nn.sigmoid(logits) if pair.towers.has_bias else jax.nn.softmax(logits)
    return np.asarray(chances)


@_explained
def measure(
    trained: Trained, pair: Pair, cfg: EvalConfig, reading: DataConfig, source: Source, mesh: Mesh
) -> dict[str, Any]:
    """Measure a pair by an evaluation of images and texts, as a run of it would in training.

    Args:
        trained, pair: the towers, with their weights.
        cfg: a ZeroShotEval, whose top1 gets its 95 % interval, or a RetrievalEval.
        reading: how images are read.
        source: the split.
        mesh: the devices.

    Raises UserError: an image that cannot be read; what the evaluation raises.
    """
    context = evals.EvalContext(
        data=reading,
        sources={"": source},
        image_size=trained.image_size,
        patch=models.native_patch(trained.model),
        channels=trained.channels,
        mesh=mesh,
        loss=None,
        tokenizer=pair.tokenizer,
    )
    evaluator: Any = evals.create(cfg, context)
    if not jax.process_index():
        stream = evaluator.stream
        share = int(len(source) * sharding.own_share(mesh))
        stream.batches = watched(stream.batches, max(share, 1), "evaluating")
    found = evaluator.run(predictors(trained, pair), _placed(trained, pair, mesh))
    count = int(found.pop("num_examples"))
    if "top1" in found:
        interval = {"top1_interval": list(wilson(round(found["top1"] * count), count))}
        found = {"top1": found.pop("top1"), **interval, **found}
    return {
        "from": trained.ref,
        "step": trained.step,
        "ema": trained.ema,
        "changes": changes(trained),
        "dataset": source.name,
        "image_size": list(trained.image_size),
        "num_examples": count,
        **found,
    }
