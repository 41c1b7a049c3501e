# SPDX-License-Identifier: Apache-2.0
"""`load(ref, config)`: from any file of weights the variables of a model, or one line why not."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError, unknown
from vit_jax.models import ModelConfig
from vit_jax.weights import (
    google,
    npz_file,
    official,
    safetensors_file,
    timm,
    torch_file,
)
from vit_jax.weights.apply import fill
from vit_jax.weights.files import first_bytes
from vit_jax.weights.resize import Resize, resizer

Flat = Mapping[str, np.ndarray]  # our names -> arrays
CHECKPOINT = "ckpt"  # the kind that is a directory, not a file


def load(
    ref: str,
    cfg: ModelConfig,
    *,
    skip: Sequence[str] = (),
    resize: Resize = Resize.AUTO,
    ema: bool = False,
    key: jax.Array | None = None,
) -> dict[str, Any]:
    """Read weights into the variables {"params": ..., **model_state} of `cfg`'s model, as numpy.

    Args:
        ref: "npz:FILE" of Google's codebases, "timm:FILE" (.safetensors, or .pth where torch is
            installed) under timm's or the authors' names, "ckpt:DIR[@step]" of a run of our own.
        cfg: the model; everything in it must be in the file and fit, and nothing be left over.
        skip: regexes over parameter names: those keep the model's own initial values.
        resize: whose rule brings position tables, bias tables and patch kernels to their size here.
        ema: of a run, take the moving average of the parameters.
        key: of the initial values of what is skipped; that of seed 0 by default.

    Raises:
        UserError: no such file or format; what does not fit, by key and shape.
    """
    found = read(ref, cfg, skip=skip, resize=resize, ema=ema)
    skipped = _missing(cfg, found) if skip else set()
    return trees.nest({**found, **initial(cfg, skipped, key)})


def read(
    ref: str,
    cfg: ModelConfig,
    *,
    skip: Sequence[str] = (),
    resize: Resize = Resize.AUTO,
    ema: bool = False,
    headless: bool = False,
    only_check: bool = False,
) -> Flat:
    """Read weights as `load` does, by our names, without what is skipped.

    With `headless` a file may lack the head, as DINO's and SigLIP's do, and so does the result.
    With `only_check` every key and shape is compared, but no tensor is read.
    """
    scheme, path = split(ref)
    if scheme == CHECKPOINT:
        from vit_jax.weights import ckpt  # late: Orbax takes long to import

        return ckpt.load(
            path,
            cfg,
            skip=skip,
            resize=resize,
            ema=ema,
            headless=headless,
            only_check=only_check,
        )
    if models.logit_factor(cfg) != 1:
        raise UserError(
            f"{ref} was trained with attention logits over sqrt(d), this model has them over d; "
            "set model.mup_base_heads=0"
        )
    if ema:
        raise UserError(f"{ref} holds no moving average to choose: only ckpt:DIR of a run does")
    return _READERS[scheme](path, cfg, skip, resize, headless, only_check)


def split(ref: str) -> tuple[str, str]:
    """Split a reference to weights into its kind and the path.

    Raises:
        UserError: another kind, or no path.
    """
    scheme, _, path = ref.partition(":")
    kinds = {**{name: f"{name}:FILE" for name in _READERS}, CHECKPOINT: f"{CHECKPOINT}:DIR"}
    if scheme not in kinds:
        raise unknown("kind of weights in", ref, kinds.values())
    if not path:
        raise UserError(f"{ref!r} names no file: give {kinds[scheme]}")
    return scheme, os.path.expanduser(path)  # a shell does so at the start of a word only


def _load_npz(
    path: str,
    cfg: ModelConfig,
    skip: Sequence[str],
    resize: Resize,
    headless: bool,
    only_check: bool,
) -> Flat:
    rule = Resize.GOOGLE if resize is Resize.AUTO else resize
    with npz_file.opened(path) as source:
        shapes = source.shapes()
        prefix = google.prefix(cfg, shapes)
        return fill(
            google.entries(cfg, shapes),
            source,
            skip=skip,
            resize=resizer(rule, cfg),
            is_ignored=lambda name: google.is_ignored(name, prefix),
            headless=headless,
            only_check=only_check,
        )


def _load_timm(
    path: str,
    cfg: ModelConfig,
    skip: Sequence[str],
    resize: Resize,
    headless: bool,
    only_check: bool,
) -> Flat:
    start = first_bytes(path)
    # A zip, or the pickles of before PyTorch 1.6.
    is_torch = start.startswith((b"PK", b"\x80"))
    with (torch_file if is_torch else safetensors_file).opened(path) as source:
        return fill(
            timm.entries(cfg),
            official.with_timm_names(source, cfg),
            skip=skip,
            resize=resizer(resize, cfg),
            is_ignored=timm.is_ignored,
            headless=headless,
            only_check=only_check,
        )


_READERS: dict[str, Callable[[str, ModelConfig, Sequence[str], Resize, bool, bool], Flat]] = {
    "npz": _load_npz,
    "timm": _load_timm,
}


def _missing(cfg: ModelConfig, found: Flat) -> set[str]:
    return {name for name, _ in trees.named_leaves(models.abstract(cfg)) if name not in found}


def initial(cfg: ModelConfig, names: set[str], key: jax.Array | None = None) -> dict[str, Any]:
    """Return the model's own initial values of the named variables, computing no others."""
    if not names:
        return {}
    module = models.create(cfg)

    @jax.jit  # which prunes what is not returned
    def values(key: jax.Array) -> dict[str, jax.Array]:
        params, state = models.init(module, cfg, key)
        leaves = trees.named_leaves({"params": params, **state})
        return {name: leaf for name, leaf in leaves if name in names}

    drawn = values(jax.random.key(0) if key is None else key)
    return {name: np.asarray(value) for name, value in drawn.items()}
