# SPDX-License-Identifier: Apache-2.0
"""Images and texts in one space: an image encoder of any family and a text tower.

CLIP (arXiv:2103.00020), SigLIP (arXiv:2303.15343). The encoder's parameters keep the names of the
plain model, so that whatever takes an encoder finds it; beside them stand `text`, `image_head`
where there is a projection, `logit_scale`, a logarithm, and `logit_bias`.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, Int

from vit_jax import errors, models
from vit_jax.errors import UserError
from vit_jax.models import facts, text
from vit_jax.models.base import ModelConfig, Output
from vit_jax.models.text import TextConfig, TextTower, TowerHead
from vit_jax.settings.fields import annotations, conformed

TEXT, IMAGE_HEAD, SCALE, BIAS = "text", "image_head", "logit_scale", "logit_bias"
# What stands beside the image encoder's parameters.
BESIDE = (TEXT, IMAGE_HEAD, SCALE, BIAS)
# Where training starts: CLIP section 2.5, SigLIP algorithm 1.
CLIP_SCALE, SIGLIP_SCALE, SIGLIP_BIAS = math.log(1 / 0.07), math.log(10), -10.0


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class TwoTowers:
    """A pair of towers.

    Attributes:
        image: the encoder, without a head.
        text: the text tower.
        dim: E, the width of the space that both share.
        image_projection: the layer from the encoder's features to it; without one E is their width.
        has_bias: logits have a bias, as SigLIP's.
    """

    image: ModelConfig
    text: TextConfig
    dim: int
    image_projection: TowerHead = TowerHead.LINEAR
    has_bias: bool = False


def validate(cfg: TwoTowers, below: str = "") -> None:
    """Refuse towers that do not meet in one space; `below` is what the fields' names begin with."""
    text.validate(cfg.text, f"{below}text")
    if cfg.image.num_classes:
        raise UserError(
            f"model.num_classes={cfg.image.num_classes}: images and texts have no classes; set it "
            "to 0",
            field="model.num_classes",
        )
    if cfg.text.projection is TowerHead.NONE and cfg.text.dim != cfg.dim:
        dims = f"{below}text.dim={cfg.text.dim} to be {below}dim={cfg.dim}"
        raise UserError(f"{below}text.projection=none needs {dims}")
    if cfg.image_projection is TowerHead.NONE and (width := features_width(cfg.image)) != cfg.dim:
        features = f"the images' features, of width {width}, to be {below}dim={cfg.dim}"
        raise UserError(f"{below}image_projection=none needs {features}")


@functools.cache
def _rows() -> list[list[str]]:
    lines = Path(__file__).with_name("two_towers.tsv").read_text("utf-8").splitlines()
    return [line.split("\t") for line in lines if line[0] != "#"]


def names() -> list[str]:
    """List the named pairs."""
    return [row[0] for row in _rows()]


def variant(name: str, **overrides: Any) -> TwoTowers:
    """Return a named pair: `variant("clip_b16")`, `variant("siglip2_b16_384")`.

    A number after the last underscore is the resolution where it is no pair's own. `overrides` are
    fields of the image encoder.

    Raises UserError: an unknown name or field, with the nearest valid ones.
    """
    found = {row[0]: row[1:] for row in _rows()}
    sized = re.fullmatch(r"(.+)_(\d{2,4})", name)
    base, size = name, {}
    if name not in found and sized:
        base, size = sized[1], {"image_size": (int(sized[2]),) * 2}
        # siglip2_b16_384 stands beside siglip2_l16_256, whose published pairs begin there.
        base = base if base in found else next((n for n in found if n.startswith(f"{base}_")), base)
    if base not in found:
        raise errors.unknown("pair of towers", name, found)
    image, changes, pair, tower = found[base]
    own = {key: facts.parsed(value) for key, value in _fields(changes).items()}
    encoder = models.variant(image, **{**own, "num_classes": 0, **size, **overrides})
    texts = TextConfig(**_read(TextConfig, tower))
    return TwoTowers(image=encoder, text=texts, **_read(TwoTowers, pair))


def _fields(words: str) -> dict[str, str]:
    return dict(word.split("=") for word in words.split())


def _read(cls: type, words: str) -> dict[str, Any]:
    kinds = annotations(cls)
    return {k: conformed(kinds[k], k, facts.parsed(v)) for k, v in _fields(words).items()}


def features_width(cfg: ModelConfig) -> int:
    """Return the width of the features that an encoder makes of an image."""
    variables = models.abstract(cfg)
    module = models.create(models.looped(cfg))
    image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32)
    apply = functools.partial(module.apply, train=False)
    return cast(Output, jax.eval_shape(apply, variables, image)).features.shape[-1]


def tower(cfg: TwoTowers, *, train: bool = False) -> TextTower:
    """Create the text tower's module."""
    return TextTower(cfg.text, cfg.image, cfg.dim, train)


def init(
    cfg: TwoTowers, key: jax.Array, scale: float | None = None, bias: float | None = None
) -> tuple[Any, Mapping[str, Any]]:
    """Initialise (params, model_state); pure.

    `scale`, a logarithm, and `bias` are where the logits start; by default at the published values
    of CLIP, or with a bias of SigLIP.
    """
    looped = models.looped(cfg.image)
    params, state = models.init(models.create(looped), looped, key)
    return {**params, **init_beside(cfg, key, scale, bias)}, state


def init_beside(
    cfg: TwoTowers, key: jax.Array, scale: float | None = None, bias: float | None = None
) -> dict[str, Any]:
    """Initialise what stands beside the image encoder's parameters."""
    keys = [jax.random.fold_in(key, i) for i in range(1, 4)]
    looped = dataclasses.replace(cfg, image=models.looped(cfg.image))
    tokens = jnp.zeros((1, cfg.text.context), jnp.int32)
    drawn = tower(looped).init(keys[0], tokens)["params"]
    found: dict[str, Any] = {TEXT: text.initial(drawn, cfg.text, keys[1])}
    if cfg.image_projection is not TowerHead.NONE:
        width = features_width(cfg.image)
        head = text.projection(cfg.image_projection, cfg.dim, IMAGE_HEAD)
        found[IMAGE_HEAD] = head.init(keys[2], jnp.zeros((1, width)))["params"]
        kernel = found[IMAGE_HEAD]["kernel"]  # as open_clip's: normal, width^-0.5
        kernel = width**-0.5 * jax.random.normal(keys[2], kernel.shape, kernel.dtype)
        found[IMAGE_HEAD] = {**found[IMAGE_HEAD], "kernel": kernel}
    start = (SIGLIP_SCALE if cfg.has_bias else CLIP_SCALE) if scale is None else scale
    found[SCALE] = jnp.asarray(start, jnp.float32)
    if cfg.has_bias:
        found[BIAS] = jnp.asarray(SIGLIP_BIAS if bias is None else bias, jnp.float32)
    return found


def abstract(cfg: TwoTowers) -> dict[str, Any]:
    """Return the shapes and dtypes of {"params": ..., **model_state}, allocating nothing."""
    image = models.abstract(cfg.image)
    beside = jax.eval_shape(lambda: init_beside(cfg, jax.random.key(0)))
    return {**image, "params": {**image["params"], **beside}}


def embed_image(
    cfg: TwoTowers, params: Mapping[str, Any], features: Float[Array, "B D"]
) -> Float32[Array, "B E"]:
    """Return the unit vectors of images, from the encoder's features."""
    x = features.astype(jnp.float32)
    if cfg.image_projection is not TowerHead.NONE:
        head = text.projection(cfg.image_projection, cfg.dim, IMAGE_HEAD)
        x = cast(jax.Array, head.apply({"params": params[IMAGE_HEAD]}, x))
    return unit(x)


def embed_text(
    cfg: TwoTowers,
    params: Mapping[str, Any],
    tokens: Int[Array, "B L"],
    *,
    train: bool = False,
) -> Float32[Array, "B E"]:
    """Return the unit vectors of texts, from their tokens."""
    found = tower(cfg, train=train).apply({"params": params[TEXT]}, tokens)
    return unit(cast(jax.Array, found))


def unit(x: Float32[Array, "B E"]) -> Float32[Array, "B E"]:
    """Divide rows by their length."""
    return x * jax.lax.rsqrt(jnp.maximum(jnp.square(x).sum(axis=-1, keepdims=True), 1e-24))


def logits(
    params: Mapping[str, Any], image: Float32[Array, "B E"], texts: Float32[Array, "T E"]
) -> Float32[Array, "B T"]:
    """Return exp(logit_scale) x.y + logit_bias of unit vectors, in full precision."""
    products = jnp.matmul(image, texts.T, precision=jax.lax.Precision.HIGHEST)
    return products * jnp.exp(params[SCALE]) + params.get(BIAS, 0.0)
