# SPDX-License-Identifier: Apache-2.0
"""What a masked autoencoder makes of images: each as it is, with hidden patches, and filled in."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Num, UInt8

from vit_jax import objectives, trees, weights
from vit_jax.data import DataConfig
from vit_jax.errors import UserError, shown
from vit_jax.figures.contact_sheet import Tile, render, write
from vit_jax.inference.trained import Trained
from vit_jax.inference.views import picture
from vit_jax.objectives import Mae, MaeConfig
from vit_jax.weights.layout import Own

_MOST = 12  # images of a sheet


def write_sheet(
    trained: Trained,
    images: Iterable[tuple[str, Num[np.ndarray, "H W C"]]],
    out: Path,
    total: int,
) -> Iterator[str]:
    """Write reconstructions.png: a row of three for each of the first of `total` images.

    Yields the picture's path; without images nothing. An image hides the same patches each time.

    Raises UserError: the run is no masked autoencoder's, or the file has no decoder of these sizes.
    """
    objective = _objective(trained)
    variables = _read(objective, trained)
    reconstruct = jax.jit(objective.reconstructions)
    rows = []
    for name, view in images:
        if len(rows) == _MOST:
            break
        masked, filled = reconstruct(variables, {"image": jnp.asarray(view[None])})
        share = objective.cfg.share
        rows.append(
            [
                Tile(picture(trained, view), shown(Path(name).name)),
                Tile(_pixels(trained, masked), f"{share:.0%} hidden"),
                Tile(_pixels(trained, filled), "predicted there"),
            ]
        )
    if rows:
        rest = f", the first {len(rows)} of {total:,} images" if total > _MOST else ""
        title = f"{trained.name}: reconstructions{rest}"
        yield write(out, "reconstructions.png", render(rows, title))


def _objective(trained: Trained) -> Mae:
    # A published file says nothing of its objective: those with a decoder predict plain pixels.
    cfg = trained.config.objective if trained.config else MaeConfig(norm_pix=False)
    if not isinstance(cfg, MaeConfig):
        raise UserError(f"{trained.ref} learned by {type(cfg).__name__}; give a run of MaeConfig")
    data = DataConfig(mean=trained.mean, std=trained.std)
    cfg.check(trained.model, data)
    found = objectives.create(cfg, trained.model, data)
    assert isinstance(found, Mae)
    return found


def _read(objective: Mae, trained: Trained) -> Any:
    abstract = jax.eval_shape(objective.init, jax.random.key(0))[0]
    own = Own({name: abstract[name] for name in objective.own_parameters}, objective.own_heads)
    found = weights.read(trained.source, trained.model, ema=trained.ema, headless=True, own=own)
    variables = trees.nest(found)
    lacking = [name for name in objective.own_parameters if name not in variables["params"]]
    if lacking:
        sizes = "objective.decoder_dim, decoder_depth and decoder_heads"
        raise UserError(f"{trained.ref} has no decoder ({lacking[0]}) of these {sizes}")
    return variables


def _pixels(trained: Trained, image: jax.Array) -> UInt8[np.ndarray, "H W C"]:
    if trained.reading.bands:
        return picture(trained, np.asarray(image)[0])
    return (np.asarray(image)[0].clip(0, 1) * 255).round().astype(np.uint8)
