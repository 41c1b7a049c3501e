# SPDX-License-Identifier: Apache-2.0
"""The manifest of a checkpoint: names, shapes and checksums of its arrays, metadata and metrics.

The checksum of an array has 32 bits and protects against accidents (bit rot, torn writes), not
against tampering. It depends on the values alone, so it is the same on 8 devices and on 1.
"""

import contextlib
import dataclasses
import functools
import json
import math
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, SupportsFloat, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import multihost_utils
from jaxtyping import Array, UInt32

from vit_jax import trees
from vit_jax.errors import IO_ERROR, NonFinite, UserError, setting, some

_FORMAT = 1
_BLOCK = 2**16  # words whose digest NumPy takes at once

T = TypeVar("T")


class Damaged(Exception):
    """A checkpoint cannot be used; the message says why, for a person."""


class Inaccessible(UserError):
    """A checkpoint may be intact, but the operating system does not let it be read now."""

    status = IO_ERROR


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The description of one saved state."""

    leaves: dict[str, Any]  # name -> (dtype, shape, digest) of every array
    metadata: dict[str, Any]  # what the caller passed, as JSON
    metrics: dict[str, float]  # name -> value at that step


def describe(
    state: trees.PyTree, metadata: Mapping[str, Any], metrics: Mapping[str, SupportsFloat]
) -> Manifest:
    """Describe a state, waiting for its arrays; raises NonFinite: one holds NaN or infinity."""
    sums, bad = examine(state)
    if bad:
        raise NonFinite(
            f"{some(bad, 3)} overflowed to NaN or infinity, so no checkpoint is made of them; "
            "those before are intact. Lower optim.lr or set optim.clip_norm=1"
        )
    leaves = {
        name: (str(leaf.dtype), list(leaf.shape), sums[name])
        for name, leaf in trees.named_leaves(state)
    }
    now = json.loads(json.dumps(metadata))  # a copy: the run changes its own
    return Manifest(leaves, now, {name: float(v) for name, v in metrics.items()})


def pack(manifest: Manifest) -> dict[str, Any]:
    """Turn a manifest into JSON with a checksum of its own."""
    text = json.dumps(dataclasses.asdict(manifest))
    return {"format": _FORMAT, "record": text, "crc32": zlib.crc32(text.encode())}


def unpack(packed: Any) -> Manifest:
    """Undo `pack`; raises Damaged: `packed` is not what `pack` returned."""
    with contextlib.suppress(TypeError, KeyError, AttributeError, ValueError, RecursionError):
        text = packed["record"]
        if zlib.crc32(text.encode()) == packed["crc32"]:
            found = Manifest(**json.loads(text))
            if _is_usual(found):
                return found
    raise Damaged("its metadata is damaged")


def _is_usual(manifest: Manifest) -> bool:
    """Return whether a manifest's values have the types that `describe` gives them."""
    names = manifest.metadata.get("class_names", [])
    settings = manifest.metadata.get("config", {})
    own = manifest.metadata.get("own_parameters", [])
    ranking = settings.get("checkpoint", {})
    shapes = [(kind, *shape, digest) for kind, shape, digest in manifest.leaves.values()]
    return (
        all(_is_dtype(kind) for kind, *_ in shapes)
        and all(type(number) is int and number >= 0 for _, *numbers in shapes for number in numbers)
        and all(isinstance(value, float | int) for value in manifest.metrics.values())
        and isinstance(settings.get("model", {}), dict)
        and isinstance(ranking.get("metric", ""), str)
        and isinstance(names, list)
        and isinstance(own, list)
        and all(isinstance(name, str) for name in (*names, *own))
    )


def _is_dtype(name: Any) -> bool:
    """Return whether a dtype's name is that of numbers, or of a random key."""
    if not isinstance(name, str):
        return False
    return name.startswith("key<") or np.dtype(name).kind in "biufcV"


def check_structure(manifest: Manifest, abstract: trees.PyTree, path: Path) -> None:
    """Raise UserError where names, shapes or dtypes of saved and wanted arrays differ."""
    saved = {n: f"{dtype}{shape}" for n, (dtype, shape, _) in manifest.leaves.items()}
    wanted = {n: f"{x.dtype}{list(x.shape)}" for n, x in trees.named_leaves(abstract)}
    lines = [
        f"{name}: {saved.get(name, 'nothing')} saved, {wanted.get(name, 'nothing')} wanted"
        for name in sorted(saved.keys() | wanted.keys())
        if saved.get(name) != wanted.get(name)
    ]
    if lines:
        run = path.parent.parent  # of runs/x/checkpoints/7
        raise UserError(
            f"{path} holds what another model, optimizer, ema_decay or faults.skip_spikes needs: "
            f"{some(lines)}. Go back to the config it was trained with, or choose "
            "another workdir and begin with its weights: "
            f"{setting(f'config.init.weights=ckpt:{run}')}"
        )


def verify(manifest: Manifest, state: trees.PyTree) -> None:
    """Compare the digests of a restored state with the saved ones; raises Damaged: some differ."""
    sums = digests(state)
    wrong = [name for name, digest in sums.items() if manifest.leaves[name][2] != digest]
    if wrong:
        raise Damaged(f"{some(wrong, 3)} changed since being saved (checksum)")


def raising_inaccessible(do: Callable[..., T]) -> Callable[..., T]:
    """Raise `Inaccessible` with the system's reason in place of an OSError."""

    @functools.wraps(do)
    def wrapped(*args: Any) -> T:
        try:
            return do(*args)
        except OSError as error:
            reason = f"{error.strerror} (errno {error.errno})"
            raise Inaccessible(f"cannot use {error.filename}: {reason}") from error

    return wrapped


def on_all_processes(do: Callable[[], T]) -> T:
    """Return `do()`, which reads files; if it fails in one process, all processes raise."""
    value, failure = None, None
    try:
        value = do()
    except (Damaged, Inaccessible) as error:
        failure = error
    if jax.process_count() > 1:
        failed = {None: 0, Damaged: 1, Inaccessible: 2}[type(failure) if failure else None]
        worst = multihost_utils.process_allgather(np.asarray(failed)).max()
        if worst == 2 and failed != 2:
            failure = Inaccessible("another process cannot read its files; its line says why")
        elif worst == 1 and failed == 0:
            failure = Damaged("another process finds it damaged")
    if failure is not None:
        raise failure
    return cast(T, value)


def _words(x: Array) -> UInt32[Array, "*shape"]:
    """View an array as unsigned words; an element of 64 bits gives two."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        x = jax.random.key_data(x)
    if x.dtype == jnp.bool_:
        x = x.astype(jnp.uint8)
    bits = min(x.dtype.itemsize * 8, 32)
    return lax.bitcast_convert_type(x, f"uint{bits}").astype(jnp.uint32)


@jax.jit
def _digest(x: Array) -> tuple[Array, Array]:
    """Return the digest, and whether every number is finite, in one pass over the array."""
    words = _words(x)
    # Row-major position, by axis: a reshape to one axis would gather a sharded array.
    index = jnp.zeros(words.shape, jnp.uint32)
    for axis in range(words.ndim):
        stride = math.prod(words.shape[axis + 1 :]) % 2**32
        index += lax.broadcasted_iota(jnp.uint32, words.shape, axis) * jnp.uint32(stride)
    # An odd weight has an inverse modulo 2**32, so a change of one element is always seen.
    finite = jnp.isfinite(x).all() if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.asarray(True)
    return jnp.sum(words * (2 * index + 1), dtype=jnp.uint32), finite


def _host_digest(x: np.ndarray) -> tuple[int, bool]:
    """Compute `_digest` with NumPy, in blocks that stay in a processor's cache."""
    flat = np.ravel(x)
    words = flat.view(f"u{min(x.dtype.itemsize, 4)}")
    weights = np.arange(1, 2 * min(words.size, _BLOCK), 2, dtype=np.uint32)
    digest = 0
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK].astype(np.uint32, copy=False)
        digest += int(np.sum(block * weights[: block.size], dtype=np.uint32))
        digest += 2 * start * int(np.sum(block, dtype=np.uint32))
    blocks = (flat[start : start + _BLOCK] for start in range(0, flat.size, _BLOCK))
    return digest % 2**32, all(bool(np.isfinite(block).all()) for block in blocks)


def _on_host(leaf: Any) -> bool:
    """Return whether NumPy reads a leaf where it lies: compiling for each shape takes longer."""
    if isinstance(leaf, np.ndarray):
        return True
    one = isinstance(leaf, jax.Array) and leaf.is_fully_addressable and len(leaf.devices()) == 1
    key = one and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return one and not key and next(iter(leaf.devices())).platform == "cpu"


def digests(tree: trees.PyTree) -> dict[str, int]:
    """Compute every leaf's digest, by leaf name.

    The sum over words of `word * (2 * i + 1)` modulo 2**32, i being the word's row-major index in
    the global array. Every process of a run must call it, and gets the same numbers.
    """
    return examine(tree)[0]


def examine(tree: trees.PyTree) -> tuple[dict[str, int], list[str]]:
    """Return `digests`, and the names of the leaves that hold NaN or infinity."""
    # Leaf by leaf: leaves may live on different devices, and equal shapes compile once.
    by_name = {
        name: _host_digest(np.asarray(leaf)) if _on_host(leaf) else _digest(leaf)
        for name, leaf in trees.named_leaves(tree)
    }
    found = jax.device_get(by_name).items()
    sums = {name: int(digest) for name, (digest, _) in found}
    return sums, [name for name, (_, finite) in found if not finite]
