# SPDX-License-Identifier: Apache-2.0
"""Where an image is like a text, as contact sheets: `visualize --similarity`.

Each patch's last token goes alone the way that the pooled vector goes: through the pooling by
attention where there is one, and the layer to the shared space. The class token's place is taken by
the patch's own token, which was not trained for it, so that the map tells less there.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt8

from vit_jax import models
from vit_jax.data import normalize
from vit_jax.errors import UserError, shown
from vit_jax.figures.contact_sheet import Tile, colors, overlay, render, spread, write
from vit_jax.inference import pairs
from vit_jax.inference.pairs import Pair
from vit_jax.inference.trained import Trained
from vit_jax.inference.views import picture
from vit_jax.models import ModelConfig, Output, ViTConfig, two_towers
from vit_jax.models.base import compute_dtype
from vit_jax.models.layers.block import BlockConfig
from vit_jax.models.layers.norm import token_norm
from vit_jax.models.layers.pool import MapPool, Pool, QueryPool
from vit_jax.process.escapes import terminal
from vit_jax.visual.attention_sheets import enlarged, unused

Vectors = tuple[Float[Array, "B E"], Float[Array, "B rows columns E"]]


def write_sheets(
    trained: Trained,
    pair: Pair,
    text: str,
    images: Iterable[tuple[str, UInt8[np.ndarray, "H W C"]]],
    out: Path,
) -> Iterator[str]:
    """Write NAME_similarity.png of each image as it comes; yields the path of each.

    `images` are the names of their files, and the images at the model's size.

    Raises UserError: a model of whose places no map can be made, or `out` cannot be made.
    """
    look = make_vectors(trained, pair)
    wanted = pairs.embed_texts(pair, [text])[0]
    taken: set[str] = set()
    for name, view in images:
        whole, places = jax.device_get(look(view[None]))
        heat, image = places[0] @ wanted, enlarged(picture(trained, view))
        about = f"cosine {heat.min():.3f} to {heat.max():.3f}\nof the image {whole[0] @ wanted:.3f}"
        row = [
            Tile(image, terminal(shown(Path(name).name))),
            Tile(overlay(image, heat), f"{terminal(text)}\n{about}"),
            Tile(colors(spread(heat)), "{} x {}, least to most".format(*heat.shape)),
        ]
        png = render([row], f"{trained.name}: similarity of a text to each place")
        yield write(out, f"{unused(Path(name).stem, taken)}_similarity.png", png)


def make_vectors(trained: Trained, pair: Pair) -> Callable[[UInt8[np.ndarray, "B H W C"]], Vectors]:
    """Return images -> (unit vectors of the images, unit vectors of their places), compiled.

    Raises UserError: a model of whose places no vector can be made.
    """
    cfg, towers = trained.model, pair.towers
    if getattr(cfg, "token_merging", 0):
        raise UserError("model.token_merging merges patches; look with --model.token_merging=0")
    if getattr(cfg, "distilled", False) or getattr(cfg, "pre_logits_dim", 0):
        raise UserError("no patch of this model goes alone the way of its pooled vector")
    module = models.create(cfg)

    def vectors(variables: Any, params: Any, image: jax.Array) -> tuple[Vectors, jax.Array]:
        normal = normalize(image, trained.mean, trained.std)
        output, seen = models.captured(module, variables, normal)
        size = image.shape[1], image.shape[2]
        features = _features(cfg, variables["params"], output, seen, size)
        apart = jnp.abs(features.mean(axis=(1, 2)) - output.features).max()
        both = two_towers.embed_image(towers, params, output.features), _embed(features, params)
        return both, apart / jnp.abs(output.features).max()

    def _embed(features: jax.Array, params: Any) -> jax.Array:
        flat = features.reshape(-1, features.shape[-1])
        found = two_towers.embed_image(towers, params, flat)
        return found.reshape(*features.shape[:3], -1)

    apply, variables = jax.jit(vectors), jax.device_put(trained.variables)

    def look(image: UInt8[np.ndarray, "B H W C"]) -> Vectors:
        found, apart = apply(variables, pair.params, image)
        if not isinstance(cfg, ViTConfig) and not apart < 1e-2:
            raise UserError(
                f"the features of a {models.family(cfg).name} are no mean over places, so that no "
                "place has a similarity of its own"
            )
        return found

    return look


def _features(
    cfg: ModelConfig, params: Any, output: Output, seen: Any, size: tuple[int, int]
) -> Float[Array, "B rows columns F"]:
    """Return for each place what the features are where it alone is pooled."""
    if not isinstance(cfg, ViTConfig):
        if "map" in seen:
            return seen["map"].astype(jnp.float32)
        grid = models.family(cfg).grids(cfg, size)[-1]
        return output.tokens.reshape(-1, *grid, output.tokens.shape[-1]).astype(jnp.float32)
    rows, columns = models.patch_grid(cfg, size)
    tokens = output.tokens[:, -rows * columns :]
    flat = tokens.reshape(-1, 1, tokens.shape[-1])
    if cfg.pool in (Pool.MAP, Pool.QUERY):
        own = {"num_heads": cfg.pool_heads, "mlp_dim": cfg.pool_mlp_dim}
        block = BlockConfig.of(cfg, **{name: value for name, value in own.items() if value})
        pool = MapPool if cfg.pool is Pool.MAP else QueryPool
        flat = pool(block).apply({"params": params[f"{cfg.pool}_pool"]}, flat)
    elif cfg.fc_norm:
        norm = token_norm(cfg.norm, cfg.norm_eps, compute_dtype(cfg), "fc_norm")
        flat = norm.apply({"params": params["fc_norm"]}, flat)
    flat = cast(jax.Array, flat).astype(jnp.float32)
    return flat.reshape(-1, rows, columns, flat.shape[-1])
