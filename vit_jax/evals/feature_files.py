# SPDX-License-Identifier: Apache-2.0
"""Features on the disk: .npy arrays filled through a map, labels and names; shown when complete."""

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from vit_jax import files
from vit_jax.evals.features import Allocate

_PARTIAL = ".partial"
_README = "FEATURES.md"
CLASSES = "class_names.txt"
# The files that a readme lists.
_LISTED = re.compile(r'"((?:features|labels)_\w+\.npy|names_\w+\.txt|class_names\.txt)"')


class FeatureFiles:
    """The files of one folder while they are written.

    For each split, such as "train": features_train.npy (float32 [N, D]), labels_train.npy (where
    there are labels), names_train.txt (a line an image). For all, where there are classes:
    class_names.txt (a line a class).
    """

    def __init__(self, folder: Path) -> None:
        """Take an empty folder to write in."""
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
            for name in (f"features_{split}", f"labels_{split}"):
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
