# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a bucket: the files of step 7 under `7/`, as on disk, and `7.json`, its mark.

The mark says that it is whole: it is written after all files and deleted before them. It lists them
with their sizes.
"""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from vit_jax import files as files_lib
from vit_jax import startup
from vit_jax.bucket_folder import Folder
from vit_jax.checkpoints import DIRECTORY
from vit_jax.checkpoints.storage import FETCHED

Files = dict[str, int]  # name within the checkpoint -> size in bytes


def described(path: Path) -> Files:
    """List the files of a checkpoint on disk."""
    found = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_size for file in found}


def whole(folder: Folder) -> dict[int, Files]:
    """Return the whole checkpoints of a run's folder, by step; raises RemoteError."""
    names = [name.removeprefix(f"{DIRECTORY}/") for name in folder.names(DIRECTORY)]
    marks = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    steps = sorted(int(mark) for mark in marks if mark.isdecimal())
    return {step: json.loads(folder.read(_mark(step)))["files"] for step in steps}


def send(folder: Folder, path: Path) -> Files:
    """Copy the files of a checkpoint on disk, without the mark; returns them.

    Raises RemoteError, or FileNotFoundError where it is deleted meanwhile.
    """
    files, place = described(path), f"{DIRECTORY}/{path.name}"
    remove(folder, int(path.name))  # a copy that was not finished
    folder.send((path / name, f"{place}/{name}") for name in files)
    return files


def mark(folder: Folder, step: int, files: Mapping[str, int]) -> None:
    """Declare that all files of a checkpoint are there."""
    folder.write(_mark(step), json.dumps({"files": files}).encode())


def remove(folder: Folder, step: int) -> None:
    """Delete a checkpoint; one that is half deleted does not count as one."""
    mark, place = _mark(step), f"{DIRECTORY}/{step}/"
    found = [name for name in folder.names(DIRECTORY) if name == mark or name.startswith(place)]
    folder.remove(sorted(found, key=lambda name: name != mark))


def fetch(folder: Folder, files: Mapping[str, int], path: Path) -> None:
    """Copy a checkpoint to `path`, where it appears whole; what the bucket lost is left out."""
    place = f"{DIRECTORY}/{path.name}"
    there = folder.names(place)
    temporary = path.with_name(f"{path.name}{FETCHED}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    names = {name: f"{place}/{name}" for name in files}
    folder.fetch((names[name], temporary / name) for name in names if names[name] in there)
    shutil.rmtree(path, ignore_errors=True)
    temporary.rename(path)


def readable(url: str) -> tuple[Path, Callable[[int], None]]:
    """Return a directory of this machine that stands for a run in a bucket, for readers.

    It has what describes each checkpoint. The function that is returned with it fetches the arrays
    of one step too. What was read before is not read again.
    """
    folder, place = Folder(url), startup.cache_home() / "vit_jax" / "read" / url.replace("://", "/")
    found = whole(folder)
    steps = place / DIRECTORY
    for old in list(steps.glob("*")):
        mark = old.with_suffix(".json")
        known = json.loads(mark.read_text()) if mark.is_file() else None
        if not old.stem.isdecimal() or known != found.get(int(old.stem)):
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)

    def fetch_missing(step: int, *, arrays: bool = True) -> None:
        path = steps / str(step)
        (path / "x").parent.mkdir(parents=True, exist_ok=True)
        files_lib.write(path.with_suffix(".json"), json.dumps(found[step]))
        wanted = [name for name in found[step] if arrays or "/d/" not in f"/{name}"]
        missing = {name: path / name for name in wanted if not (path / name).exists()}
        part = f".{os.getpid()}.part"
        partial = {n: file.with_name(f"{file.name}{part}") for n, file in missing.items()}
        folder.fetch((f"{DIRECTORY}/{step}/{name}", file) for name, file in partial.items())
        for name, file in partial.items():
            file.rename(missing[name])

    for step in found:
        fetch_missing(step, arrays=False)
    return place, fetch_missing


def _mark(step: int) -> str:
    return f"{DIRECTORY}/{step}.json"
