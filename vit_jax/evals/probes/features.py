# SPDX-License-Identifier: Apache-2.0
"""Frozen features of a whole split, once for each example, in its order; in memory or in files."""

import contextlib
import dataclasses
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float32

from vit_jax import data
from vit_jax.errors import UserError
from vit_jax.evals.passes import Arrays, Start, run_pass
from vit_jax.storage import files
from vit_jax.trees import PyTree

# (variables, batch) -> features [B, D], or several kinds of them by name, [B, ...]
Encode = Callable[[PyTree, Mapping[str, jax.Array]], jax.Array | dict[str, jax.Array]]
# (name, shape, dtype) -> an array to fill, in memory or on the disk
Allocate = Callable[[str, tuple[int, ...], np.dtype], np.ndarray]
MAX_PIXELS = 32  # a side of the images that `pixels` returns
_PARTIAL = ".partial"
_README = "FEATURES.md"
CLASSES = "class_names.txt"
# The files that a readme lists.
_LISTED = re.compile(r'"((?:features|labels|layer\d+)_\w+\.npy|names_\w+\.txt|class_names\.txt)"')


@dataclasses.dataclass(frozen=True)
class FeatureSet:
    """The features of the N examples of a split, in its order."""

    name: str  # of the split, for messages
    features: Float32[np.ndarray, "N ..."]  # [N, D], or of patches [N, P, Q, D]
    labels: np.ndarray  # [N] int32 class ids, or [N, K] uint8 multi-hot
    class_names: Sequence[str]  # K of them

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def in_memory(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Allocate as `np.empty` does."""
    del name
    return np.empty(shape, dtype)


def pixels(variables: PyTree, batch: Mapping[str, jax.Array]) -> jax.Array:
    """Return each image's own pixels [B, P*Q*C] in [0, 1]: what a network should improve on.

    Larger images are brought to (P, Q) of at most `MAX_PIXELS` a side: a probe of 224 x 224 x 3
    features would fit for hours.
    """
    del variables
    image = batch["image"].astype(jnp.float32) / 255
    count, height, width, channels = image.shape
    size = (count, min(height, MAX_PIXELS), min(width, MAX_PIXELS), channels)
    return jax.image.resize(image, size, "linear").reshape(count, -1)


def extract(
    encode: Encode,
    variables: PyTree,
    source: data.Source,
    batches: Start,
    *,
    shape: tuple[int, int, int],
    mesh: Mesh,
    batch_size: int,
    allocate: Allocate = in_memory,
) -> dict[str, FeatureSet]:
    """Encode every example of a split, on all devices of the mesh; return its features by name.

    Those of an encoder that returns one array are called "features".

    Args:
        encode, variables: one function object for all splits, and what it takes, on the devices.
        source, batches: the split, and what starts a pass over it, as `split_batches` does.
        shape: (H, W, C) of what the network takes.
        mesh: the devices; each process gets the features of all examples.
        batch_size: taken up to the next multiple of the devices.
        allocate: makes an array for each kind of features, by its name, and "labels".

    Raises UserError: features that are not finite, or an image that cannot be read.
    """
    count, multi = len(source), source.multi_label
    label = (count, source.num_classes) if multi else (count,)
    labels = allocate("labels", label, np.dtype(np.uint8 if multi else np.int32))
    found = {
        name: allocate(name, (count, *rest), np.dtype(np.float32))
        for name, rest in feature_shapes(encode, variables, shape).items()
    }
    encode_all(
        encode,
        variables,
        batches,
        {**found, "label": labels},
        mesh=mesh,
        batch_size=batch_size,
        name=source.name,
    )
    names = source.class_names
    return {name: FeatureSet(source.name, x, labels, names) for name, x in found.items()}


def split_batches(
    source: data.Source,
    transform: data.TransformConfig,
    shape: tuple[int, int, int],
    reading: data.Reading,
    patch: tuple[int, int] = (0, 0),
) -> Start:
    """Return what starts a pass over a split, for images of (H, W, C).

    `patch` is of a model of images of any size.
    """
    views = data.one_view(transform, shape[:2], shape[2], reading, patch=patch)
    return lambda size: data.eval_batches(source, views, batch_size=size)


def encode_all(
    encode: Encode,
    variables: PyTree,
    batches: Start,
    into: dict[str, np.ndarray],
    *,
    mesh: Mesh,
    batch_size: int,
    name: str,
) -> int:
    """Fill arrays with the features, and the labels, of a stream; returns how many rows it had.

    Args:
        encode, variables, mesh, batch_size: as in `extract`.
        batches: starts the stream, of image, mask and whatever else of `into` it has.
        into: the features by name and, where there are labels, "label" [N] or [N, K].
        name: of the stream, for messages.

    Raises UserError: features that are not finite.
    """
    done = 0

    def compute(batch: Arrays) -> Arrays:
        wanted = {key: batch[key] for key in ("mask", "label") if key in into or key == "mask"}
        return predict_batch(variables, batch, wanted, predict=encode, mesh=mesh)

    def take(result: Arrays) -> None:
        nonlocal done
        values = {key: np.asarray(value) for key, value in result.items()}
        real = values.pop("mask") > 0
        stop = done + int(real.sum())
        for key, value in values.items():
            if not np.isfinite(value[real]).all():
                raise UserError(f"{name}: the {key} are not finite; are these the model's weights?")
            into[key][done:stop] = value[real]
        done = stop

    run_pass(batches, batch_size, mesh, compute, take)
    return done


@functools.partial(jax.jit, static_argnames=("predict", "mesh"))
def predict_batch(
    variables: PyTree, batch: Arrays, rest: Arrays, *, predict: Encode, mesh: Mesh
) -> Arrays:
    """Return the `rest` and the "features", in float32 whatever the network computes in.

    Every process gets the whole of both.
    """
    rows = {name: x.astype(jnp.float32) for name, x in _named(predict(variables, batch)).items()}
    result = {**rows, **rest}
    return jax.lax.with_sharding_constraint(result, NamedSharding(mesh, PartitionSpec()))


def feature_shapes(
    encode: Encode, variables: PyTree, shape: tuple[int, int, int]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of an image's features for images of (H, W, C), computing nothing."""
    batch = {"image": jax.ShapeDtypeStruct((1, *shape), jnp.uint8)}
    found = _named(jax.eval_shape(encode, variables, batch))
    return {name: tuple(array.shape[1:]) for name, array in found.items()}


def _named(features: Any) -> dict[str, Any]:
    return features if isinstance(features, dict) else {"features": features}


class FeatureFiles:
    """The files of one folder, at first empty, while they are written.

    For each split, such as "train": features_train.npy (float32 [N, D]), layer2_train.npy and so on
    of the layers that are asked for, labels_train.npy (where there are labels), names_train.txt (a
    line an image). For all, where there are classes: class_names.txt (a line a class).
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def allocate(self, split: str) -> Allocate:
        """Return a function that allocates the arrays of a split, each mapped to its file."""

        def make(name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
            return self._map(f"{name}_{split}.npy", shape, dtype)

        return make

    def _map(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        file = self._folder / name
        array = np.lib.format.open_memmap(file, "w+", dtype, shape)
        if hasattr(os, "posix_fallocate"):  # else a full disk would show as a crash of the process
            with file.open("r+b") as stream:
                os.posix_fallocate(stream.fileno(), 0, file.stat().st_size)
        return array

    def cut(self, name: str, count: int) -> None:
        """Keep the first `count` rows of an array, such as "features_images"."""
        file = self._folder / f"{name}.npy"
        whole = np.load(file, mmap_mode="r")
        kept = self._map(f"{name}.cut", (count, *whole.shape[1:]), whole.dtype)
        kept[:] = whole[:count]
        (self._folder / f"{name}.cut").replace(file)

    def write_lines(self, name: str, lines: Iterable[str]) -> None:
        """Write one line each; a text with a line break is written as its repr."""
        with (self._folder / name).open("w", encoding="utf-8") as file:
            file.writelines(f"{x if x.isprintable() else repr(x)}\n" for x in lines)

    def write_readme(self, heading: str, splits: Sequence[str]) -> None:
        """Write how to load the folder's files; the last file to appear."""
        lines = [heading, "", "```python", "import numpy as np", ""]
        for split in splits:
            layers = (file.stem for file in self._folder.glob(f"layer*_{split}.npy"))
            layers = sorted(layers, key=lambda name: (len(name), name))
            for name in (f"features_{split}", *layers, f"labels_{split}"):
                if (self._folder / f"{name}.npy").exists():
                    array = np.load(self._folder / f"{name}.npy", mmap_mode="r")
                    shape = f"{array.dtype} {list(array.shape)}"
                    lines += [f'{name} = np.load("{name}.npy", mmap_mode="r")  # {shape}']
            lines += [f'names_{split} = open("names_{split}.txt").read().splitlines()']
        if (self._folder / CLASSES).exists():
            lines += [f'class_names = open("{CLASSES}").read().splitlines()']
        (self._folder / _README).write_text("\n".join([*lines, "```", ""]), encoding="utf-8")


@contextlib.contextmanager
def written(folder: Path, *, force: bool) -> Iterator[FeatureFiles]:
    """Move the files into `folder` once all are complete and on disk; none after an error.

    Files of the same name are replaced, FEATURES.md last, which marks a complete folder; other
    files that the previous FEATURES.md lists are removed.

    Raises UserError: files are there and `force` is False, no room, no right to write.
    """
    files.check_folder(folder, "--features", force=force)
    partial = folder / _PARTIAL
    with files.refused(f"cannot write to {folder}"):
        shutil.rmtree(partial, ignore_errors=True)  # a killed process leaves it
        try:
            partial.mkdir(parents=True)
            yield FeatureFiles(partial)
            for file in partial.iterdir():
                files.sync(file)
            if (folder / _README).exists():
                listed = set(_LISTED.findall((folder / _README).read_text(encoding="utf-8")))
                (folder / _README).unlink()
                for name in listed - {file.name for file in partial.iterdir()}:
                    (folder / name).unlink(missing_ok=True)
            for file in sorted(partial.iterdir(), key=lambda file: file.name == _README):
                file.replace(folder / file.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
