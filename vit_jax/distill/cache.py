# SPDX-License-Identifier: Apache-2.0
"""A teacher's logits on disk, by position in the training stream ("fast distillation").

Position i of the stream, its image and how that is augmented, is a function of (seed, i) alone. So
one row a position serves every run on the same stream: of any batch size, continued or not.
"""

import contextlib
import dataclasses
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float16, Float32, Int, UInt

from vit_jax.cost.tables import format_bytes
from vit_jax.distill import RECORD
from vit_jax.distill.config import FIELD
from vit_jax.errors import UserError
from vit_jax.storage import files, foreign

WEIGHTS = f"the digest of {FIELD}.weights"  # a key of `LogitCache.stream`
_FORMAT = 2
_MOST = 2**24  # classes
_BLOCK = 2**22  # bytes in memory of a file that is read whole
Rows = dict[str, np.ndarray]

# A batch's arrays of cached logits: all of them in float16; or the largest, their classes, and the
# one logit that stands for each of the others.
LOGITS, TOP, INDEX, REST = "teacher_logits", "teacher_top", "teacher_index", "teacher_rest"


@dataclasses.dataclass(frozen=True)
class LogitCache:
    """A directory of logits: a file for each array, and a description in cache.json."""

    path: Path
    stream: dict[str, Any]  # what they depend on, by field
    top_k: int  # how many of each row are kept; 0 is all
    num_classes: int  # of the teacher
    temperature: float = 1.0  # of the sum over the logits of a row that are not kept
    # Ranges of positions in the order of writing, from 0 on: the end of each ("stop"), and the
    # CRC-32 of its rows, by array.
    pieces: Sequence[Mapping[str, int]] = ()
    class_names: Sequence[str] = ()  # of each logit; () in a cache of an earlier version

    @property
    def done(self) -> int:
        """The number of positions written, from 0 on."""
        return self.pieces[-1]["stop"] if self.pieces else 0

    @property
    def weights(self) -> str:
        """Digest of the teacher's weights."""
        return self.stream[WEIGHTS]

    @property
    def arrays(self) -> dict[str, np.dtype]:
        """The dtype of one row of each array, its shape included."""
        if not self.top_k:
            return {LOGITS: np.dtype((np.float16, (self.num_classes,)))}
        index = np.uint16 if self.num_classes <= 2**16 else np.int32
        return {
            TOP: np.dtype((np.float16, (self.top_k,))),
            INDEX: np.dtype((index, (self.top_k,))),
            REST: np.dtype(np.float32),
        }

    @property
    def row_bytes(self) -> int:
        """The size of one position's row."""
        return sum(dtype.itemsize for dtype in self.arrays.values())

    def rows(self, positions: np.ndarray) -> Rows:
        """Read the rows of positions [n] in ascending order, a run of neighbours at a time."""
        if positions[-1] >= self.done:
            raise ValueError(f"{self.path} ends at {self.done}, before position {positions[-1]}")
        runs = np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1)
        found = {}
        for key, dtype in self.arrays.items():
            # Mapped anew each time: an open map counts every page that it ever touched as memory.
            array = np.memmap(self.file(key), dtype, "r", shape=(self.done,))
            found[key] = np.concatenate([np.asarray(array[run[0] : run[-1] + 1]) for run in runs])
        return found

    def file(self, key: str) -> Path:
        """Return the path of one array."""
        return self.path / f"{key}.bin"

    def reserve(self, positions: int) -> None:
        """Reserve the disk space of `positions` rows, so that a full disk is found now.

        Raises UserError: there is no room, or no right to write.
        """
        with self._writing():
            for key, dtype in self.arrays.items():
                size = positions * dtype.itemsize
                with open(self.file(key), "ab") as file:
                    # Even if the file is long enough: it may have holes.
                    if size and hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, size)

    def write(self, start: int, rows: Mapping[str, np.ndarray]) -> None:
        """Write the rows from position `start` on; they count once `finish` has committed them.

        Raises UserError: a full disk, or logits beyond float16.
        """
        if not all(np.isfinite(value).all() for value in rows.values()):
            raise UserError(
                f"the teacher's logits at positions {start:,} on are not finite in float16; "
                "are objective.distill.weights those of objective.distill.teacher?"
            )
        with self._writing():
            for key, dtype in self.arrays.items():
                with open(self.file(key), "r+b") as file:
                    file.seek(start * dtype.itemsize)
                    file.write(rows[key].astype(dtype.base).tobytes())

    def finish(self, done: int) -> "LogitCache":
        """Sync the files and commit that `done` positions are written."""
        piece = {"stop": done}
        with self._writing():
            for key in self.arrays:
                files.sync(self.file(key))
                piece[key] = self._crc32(key, self.done, done)
            committed = dataclasses.replace(self, pieces=[*self.pieces, piece])
            keys = ("stream", "top_k", "num_classes", "temperature", "pieces", "class_names")
            tree = {key: getattr(committed, key) for key in keys}
            text = json.dumps({"format": _FORMAT, **tree}, indent=1) + "\n"
            files.write(self.path / RECORD, text)
        return committed

    def check_rows(self, positions: int) -> None:
        """Raise UserError if the first `positions` rows on disk differ from their checksums."""
        if jax.process_index() == 0:
            size = format_bytes(positions * self.row_bytes)
            print(f"comparing {size} in {self.path} with their checksums", flush=True)
        start = 0
        for piece in self.pieces:
            stop = piece["stop"]
            for key in self.arrays:
                try:
                    found = self._crc32(key, start, stop)
                except OSError:  # a bad sector
                    found = None
                if found != piece[key]:
                    where = f"somewhere in positions {start:,} to {stop - 1:,}"
                    raise UserError(f"{self.file(key)} is damaged {where}; write another cache")
            if stop >= positions:
                return
            start = stop

    def _crc32(self, key: str, start: int, stop: int) -> int:
        size = self.arrays[key].itemsize
        checksum, left = 0, (stop - start) * size
        with open(self.file(key), "rb") as file:
            file.seek(start * size)
            while block := file.read(min(left, _BLOCK)):
                checksum, left = zlib.crc32(block, checksum), left - len(block)
        return checksum

    def _writing(self) -> contextlib.AbstractContextManager[None]:
        return files.refused(f"cannot write to {self.path}", "; the same command continues")


def read(directory: str | Path) -> LogitCache:
    """Open what `vit_jax cache_teacher` wrote.

    Raises UserError: it is not there, or damaged.
    """
    path = Path(directory).expanduser()
    try:
        tree = foreign.tree(foreign.read(path / RECORD), str(path / RECORD))
    except FileNotFoundError:
        raise UserError(
            f"{FIELD}.cache={str(directory)!r} holds no cached logits; write them first: "
            f"vit_jax cache_teacher --config=FILE --out={directory}"
        ) from None
    except OSError as error:
        raise UserError(f"{path / RECORD} cannot be read: {error}") from None
    if tree.pop("format", None) != _FORMAT:
        raise UserError(f"{path} was written by another version; write it in another directory")
    try:
        cache = LogitCache(**{**tree, "path": path})
        usual = _is_usual(cache)
    except (TypeError, KeyError, AttributeError):
        usual = False
    if not usual:
        raise UserError(f"{path / RECORD} does not describe cached logits; write another cache")
    for key, dtype in cache.arrays.items():
        file = cache.file(key)
        if not file.is_file() or file.stat().st_size < cache.done * dtype.itemsize:
            raise UserError(f"{file} is missing or cut; write another cache")
    return cache


def _is_usual(cache: LogitCache) -> bool:
    """Return whether the values of a description are of the kinds that `finish` writes."""
    written = [number for piece in cache.pieces for number in piece.values()]
    counts = (cache.num_classes, cache.top_k, *written)
    stops = [0, *(piece["stop"] for piece in cache.pieces)]
    names = cache.class_names
    return (
        all(type(n) is int and n >= 0 for n in counts)
        and 0 < cache.num_classes <= _MOST
        and (not cache.top_k or cache.top_k < cache.num_classes)
        and isinstance(cache.pieces, list)
        and stops == sorted(stops)
        and all(piece.keys() == {"stop", *cache.arrays} for piece in cache.pieces)
        and type(cache.temperature) in (int, float)
        and 0 < cache.temperature < math.inf
        and isinstance(cache.stream.get(WEIGHTS), str)
        and isinstance(names, list | tuple)
        and len(names) in (0, cache.num_classes)
        and all(isinstance(name, str) for name in names)
    )


def compact(
    logits: Float[Array, "B K"], top_k: int, temperature: float = 1.0
) -> dict[str, jax.Array]:
    """Turn logits into what a cache keeps of them: all in float16, or the `top_k` largest.

    The others are one number, with which their softmax at the temperature sums to what it did.
    """
    if not top_k:
        return {LOGITS: logits.astype(jnp.float16)}
    top, index = jax.lax.top_k(logits, top_k)
    others = jnp.put_along_axis(logits, index, -jnp.inf, axis=-1, inplace=False)
    mean = jax.nn.logsumexp(others / temperature, axis=-1) - jnp.log(logits.shape[-1] - top_k)
    rest = temperature * mean
    return {TOP: top.astype(jnp.float16), INDEX: index, REST: rest}


def dense(
    top: Float16[Array, "B k"],
    index: Int[Array, "B k"] | UInt[Array, "B k"],
    rest: Float32[Array, " B"],
    num_classes: int,
) -> Float32[Array, "B K"]:
    """Restore logits from the largest ones; the others are all `rest`."""
    logits = jnp.broadcast_to(rest[:, None], (top.shape[0], num_classes))
    values = top.astype(jnp.float32)
    return jnp.put_along_axis(logits, index.astype(jnp.int32), values, axis=-1, inplace=False)
