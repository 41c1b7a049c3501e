# SPDX-License-Identifier: Apache-2.0
"""The base of a run that saves only what it trains (models/lora.py): found, verified, merged."""

from collections.abc import Callable, Collection, Mapping
from contextvars import ContextVar
from pathlib import Path

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, lora
from vit_jax.weights.apply import OtherHead
from vit_jax.weights.config import Base, ResizeRule
from vit_jax.weights.files import WeightsFile, digest
from vit_jax.weights.readers.ckpt import Checkpoint

Read = Callable[..., Mapping[str, np.ndarray]]  # `weights.read`

_MOST = 16  # runs of which each is the next one's base
_bases: ContextVar[int] = ContextVar("bases", default=0)  # how many are being read


def resolved(ref: str) -> str:
    """Return a reference that means the same from any folder, and of a run the same step."""
    scheme, _, path = ref.partition(":")
    if scheme == "ckpt":
        saved = Checkpoint(str(Path(path).expanduser()))
        return f"{scheme}:{saved.directory}@{saved.step}"
    return f"{scheme}:{Path(path).expanduser().absolute()}"


def read_base(
    read: Read, base: Base, model: ModelConfig, names: Collection[str], *, elsewhere: str = ""
) -> dict[str, np.ndarray]:
    """Read the named frozen parameters, "params/blocks/attn/qkv/kernel", as a run has them.

    `elsewhere` is the reference as it was written, tried where `base.weights` is no longer there.

    Raises UserError: the base is missing or damaged, lacks one of them, or is not what it was.
    """
    given = {"resize": ResizeRule(base.resize), "ema": base.ema, "headless": True}
    ref = _present(base.weights, elsewhere)
    try:
        found = read(ref, model, skip=base.skip, **given)
    except OtherHead as error:  # layers of the file's head, which is not taken
        found = read(ref, model, skip=(*base.skip, *error.patterns), **given)
    lacking = min(set(names) - found.keys(), default="")
    if lacking:
        what = f"{ref} gives no {lacking.partition('/')[2]}, which would stay frozen at random"
        raise UserError(f"{what}; let lora.train match it")
    values = {name: found[name] for name in sorted(names)}
    if base.digest and (now := digest(values)) != base.digest:
        what = f"{ref} has changed (digest {now}, not {base.digest}) since a run froze it"
        raise UserError(f"{what}; bring the old one back, or train anew")
    return values


def _present(ref: str, elsewhere: str) -> str:
    def exists(ref: str) -> bool:
        path = ref.partition(":")[2]
        return any(Path(p).expanduser().exists() for p in (path, path.rpartition("@")[0] or path))

    return elsewhere if elsewhere and not exists(ref) and exists(elsewhere) else ref


def whole(saved: Checkpoint, base: Base, read: Read) -> WeightsFile:
    """Return a checkpoint's arrays with its base's: every A and B merged into its kernel.

    Raises UserError: the base is missing; when an array is read, it is damaged or has changed.
    """
    own = saved.file.shapes
    variables = trees.named_leaves(models.abstract(saved.model))
    shapes = {name.partition("/")[2]: tuple(leaf.shape) for name, leaf in variables}
    frozen = [name for name, _ in variables if name.partition("/")[2] not in own]
    written = saved.metadata.get("config", {}).get("init", {}).get("weights", "")
    arrays: dict[str, np.ndarray] = {}

    def array(key: str) -> np.ndarray:
        if key in own:
            return saved.file.read(key)
        if not arrays:
            deep = _bases.set(_bases.get() + 1)
            try:
                if _bases.get() > _MOST:
                    raise UserError(f"it has one too, {_MOST} times; is it its own?")
                found = read_base(read, base, saved.model, frozen, elsewhere=written)
            except UserError as error:
                if _bases.get() > 1:  # said once
                    raise
                raise UserError(f"{saved.name} holds changes of a base: {error}") from None
            finally:
                _bases.reset(deep)
            arrays.update({name.partition("/")[2]: x for name, x in found.items()})
        value, (path, _, kind) = arrays.pop(key), key.rpartition("/")
        if kind != "kernel" or f"{path}/{lora.LORA_A}" not in own:
            return value
        a, b = (saved.file.read(f"{path}/{name}") for name in (lora.LORA_A, lora.LORA_B))
        return lora.merged(value, a, b, base.scale)

    return WeightsFile(saved.name, shapes, array)
