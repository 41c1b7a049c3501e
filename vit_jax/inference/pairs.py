# SPDX-License-Identifier: Apache-2.0
"""The text tower beside a trained image encoder: texts as vectors in the space of the images.

It is read when a text is first asked for: who looks at images alone pays nothing for it.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

from vit_jax import trees, weights
from vit_jax.errors import UserError, setting
from vit_jax.inference.trained import Trained
from vit_jax.models import two_towers
from vit_jax.models.two_towers import TwoTowers
from vit_jax.text.tokenizers import Tokenizer
from vit_jax.weights.config import CHECKPOINT, KINDS, split
from vit_jax.weights.layout import Own
from vit_jax.weights.published import describe, words

_IMAGE = rf"^(?!(?:{'|'.join(two_towers.BESIDE)})(?:/|$))"  # the image encoder's parameters
_ROWS = 64  # texts at a time


@dataclasses.dataclass(frozen=True)
class Pair:
    """What a trained image encoder has beside it.

    Attributes:
        towers: both towers.
        params: of all but the image encoder, on the devices.
        tokenizer: of the texts.
    """

    towers: TwoTowers
    params: Mapping[str, Any]
    tokenizer: Tokenizer


def load(trained: Trained) -> Pair:
    """Read the text tower that lies beside an image encoder.

    Raises UserError: no text tower, no tokenizer, or what does not fit.
    """
    towers = _described(trained)
    image = dataclasses.replace(trained.model, num_classes=0)
    towers = dataclasses.replace(towers, image=image)
    two_towers.validate(towers)
    found = open_tokenizer(trained)
    found.check_fits(towers.text.vocab_size, towers.text.context)
    shapes = two_towers.abstract(towers)["params"]
    own = {name: shapes[name] for name in two_towers.BESIDE if name in shapes}
    values = weights.read(
        trained.source,
        image,
        own=Own(own, towers.text.num_heads, towers),
        skip=(_IMAGE,),
        ema=trained.ema,
    )
    if f"params/{two_towers.SCALE}" not in values:
        raise UserError(f"{trained.ref} holds an image tower alone, and no texts'")
    params = trees.nest(dict(values))["params"]
    return Pair(towers, jax.device_put(params), found)


def _described(trained: Trained) -> TwoTowers:
    if trained.towers:
        return trained.towers
    if trained.config is not None:
        if not trained.config.objective.embeds_texts:
            what = type(trained.config.objective).__name__
            raise UserError(f"{trained.ref} was trained by {what}, and knows no texts")
        from vit_jax.objectives import contrastive

        return contrastive.pair(cast(Any, trained.config.objective), trained.model)
    if split(trained.source)[0] not in KINDS:
        raise UserError(
            f"{trained.ref} does not say which text tower it holds; name the pair by "
            f"{setting('model=PAIR')}, such as siglip2_b16"
        )
    return describe.pair(trained.source)


def open_tokenizer(trained: Trained) -> Tokenizer:
    """Open the tokenizer of a run or of published weights, or that named for a file.

    Raises UserError: there is none, or one is named beside the weights' own.
    """
    scheme = split(trained.source)[0]
    if scheme in (CHECKPOINT, *KINDS):
        if trained.tokenizer:
            raise UserError(
                f"tokenizer={trained.tokenizer}: {trained.ref} has its own; leave it out",
                field="tokenizer",
            )
        return words.find(trained.ref if scheme == CHECKPOINT else trained.source)
    if trained.tokenizer:
        return words.find(trained.tokenizer)
    raise UserError(
        f"{trained.ref} has no tokenizer beside it; name it by {setting('tokenizer=REF')}: "
        "clip, hub:USER/NAME, or a FILE of train-tokenizer"
    )


Embed = Callable[[Any, Any], jax.Array]


@functools.lru_cache  # one function object a pair, so that jit finds it
def _embed_text(towers: TwoTowers) -> Embed:
    return jax.jit(lambda params, tokens: two_towers.embed_text(towers, params, tokens))


@functools.lru_cache
def _embed_image(towers: TwoTowers) -> Embed:
    return jax.jit(lambda params, features: two_towers.embed_image(towers, params, features))


def embed_texts(pair: Pair, texts: Sequence[str]) -> Float32[np.ndarray, "T E"]:
    """Return the unit vectors of texts; longer ones than the context are cut."""
    tokens = pair.tokenizer.encode(list(texts))
    embed, found = _embed_text(pair.towers), []
    for start in range(0, len(tokens), _ROWS):
        part = tokens[start : start + _ROWS]
        rows = _ROWS if len(tokens) > _ROWS else len(tokens)
        whole = np.pad(part, ((0, rows - len(part)), (0, 0)))
        found.append(np.asarray(embed(pair.params, whole))[: len(part)])
    return np.concatenate(found)


def embed_features(pair: Pair, features: Array) -> Float32[Array, "B E"]:
    """Return the unit vectors of images, from the encoder's features."""
    return _embed_image(pair.towers)(pair.params, features)


def similarity(
    pair: Pair,
    images: Float32[Array | np.ndarray, "B E"],
    texts: Float32[Array | np.ndarray, "T E"],
) -> Float32[Array, "B T"]:
    """Return the logits of unit vectors, by the scale and bias that were learned."""
    return two_towers.logits(pair.params, jnp.asarray(images), jnp.asarray(texts))
