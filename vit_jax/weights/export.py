# SPDX-License-Identifier: Apache-2.0
"""A model's variables as a timm state_dict, and that as a file; the way back is `load`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig
from vit_jax.models.layers.posemb import FIXED, sincos2d
from vit_jax.storage import files
from vit_jax.weights import grids
from vit_jax.weights.names import forms, timm
from vit_jax.weights.resize import positions

SUFFIX = ".safetensors"


def to_timm(variables: Mapping[str, Any], cfg: ModelConfig) -> dict[str, np.ndarray]:
    """Convert a model's variables to a timm state_dict, which `load_state_dict` takes strictly.

    Values are the same, bit for bit, but for a `models.logit_factor`: timm's attention has none, so
    the queries' weights are multiplied by it, and what comes is `standard(cfg)`'s. What timm holds
    besides is added: fixed position tables as learned ones, zeros for a bias that timm always has,
    PyTorch's counters beside BatchNorm's statistics.

    Raises UserError: an option of the config that timm's model of the family does not have.
    """
    check(cfg)
    leaves = dict(trees.named_leaves(folded(variables, cfg)))
    state = {}
    for entry in timm.entries(cfg):
        assert entry.encode is not None, "timm's layouts go both ways"
        value = np.asarray(leaves[entry.name])
        for parts, layer in zip(entry.layers, value if entry.stacked else [value], strict=True):
            for part, there in zip(parts, entry.encode(layer), strict=True):
                state[part.key] = np.ascontiguousarray(there)
    return {**forms.written(state, cfg), **besides(state, cfg)}


def folded(variables: Mapping[str, Any], cfg: ModelConfig) -> Mapping[str, Any]:
    """Return variables for `standard(cfg)`, which computes with them what `cfg` does with its."""
    factor = models.logit_factor(cfg)
    if factor == 1:
        return variables
    return trees.map_named(lambda name, x: _folded(name, x, cfg, factor), variables)


def standard(cfg: ModelConfig) -> Any:
    """Return the config that computes with `to_timm`'s weights what `cfg` does with its own."""
    if models.logit_factor(cfg) == 1:
        return cfg
    return models.with_fields(cfg, {"mup_base_dim": 0, "mup_base_heads": 0})


def _folded(name: str, value: Any, cfg: Any, factor: float) -> np.ndarray:
    """Multiply what is last to make the queries by a factor on attention's logits."""
    value = np.asarray(value)
    scale = np.ones(value.shape[-1:], np.float32)
    if re.search(r"(?:/q_norm|/map_pool/q)/", name):
        scale *= factor
    elif "/attn/qkv/" in name and not cfg.qk_norm:
        # Columns (head, {q,k,v}, d); or, of a bias without the keys', (head, {q,v}, d).
        parts = 3 if cfg.key_bias or not name.endswith("/bias") else 2
        scale.reshape(cfg.num_heads, parts, -1)[:, 0] *= factor
    return (value * scale).astype(value.dtype)


def check(cfg: ModelConfig) -> None:
    """Raise UserError for a config that timm's model cannot compute with any weights."""
    reason = models.family(cfg).timm_lacks(cfg)
    if reason:
        raise UserError(f"timm has no counterpart of {reason}")


def besides(state: Mapping[str, np.ndarray], cfg: Any) -> dict[str, np.ndarray]:
    """Return what a timm state_dict of a model holds besides the model's own variables."""
    found = {}
    for key in state:
        if key.endswith(".running_mean"):
            counter = key.removesuffix("running_mean") + "num_batches_tracked"
            found[counter] = np.zeros((), np.int64)
    if getattr(cfg, "pos_embed", None) in FIXED:
        _, (rows, columns) = positions(cfg)
        found["pos_embed"] = sincos2d(rows, columns, cfg.dim, cfg.pos_embed)[None]
    for key, size in models.family(cfg).timm_zeros(cfg).items():
        found[key] = np.zeros(size, np.float32)
    return found


def save(
    path: str | Path,
    state: Mapping[str, np.ndarray],
    cfg: ModelConfig | None = None,
    *,
    overwrite: bool = False,
) -> int:
    """Write a .safetensors file and return its size in bytes; raises UserError: it cannot be.

    With `cfg` its metadata have that model, which says of which grid its tables are.
    """
    file = Path(path)
    files.check_file(file, "--to", force=overwrite, suffix=SUFFIX)
    try:
        with files.replacing(file) as temporary:
            temporary.touch()
            mode = temporary.stat().st_mode  # the library makes it readable for its owner alone
            save_file(dict(state), temporary, metadata=grids.metadata(cfg))
            _order_metadata(temporary)
            temporary.chmod(mode)
    except (OSError, SafetensorError) as error:
        raise UserError(f"cannot write {file}: {' '.join(str(error).split())}") from None
    return file.stat().st_size


def _order_metadata(file: Path) -> None:
    """Put a file's metadata in order, which the library writes in another one each time.

    So that the same weights are the same bytes.
    """
    with file.open("r+b") as stream:
        length = int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        stream.seek(8)
        stream.write(text.ljust(length))  # as the library pads it
