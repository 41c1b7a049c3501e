# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in a bucket: the files of step 7 under `7/`, as on disk, and `7.json`, its mark.

The mark says that the checkpoint is whole: it is written after all files and deleted before them.
It lists the files with their sizes. Processes that share no disk send their parts to `7/part_0/`,
`7/part_1/` and so on; a reader merges the parts.
"""

import contextlib
import fcntl
import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vit_jax.checkpoints import DIRECTORY
from vit_jax.checkpoints.storage import FETCHED, merge
from vit_jax.errors import UserError
from vit_jax.storage import files as files_lib
from vit_jax.storage import foreign
from vit_jax.storage.bucket import Folder
from vit_jax.storage.remote import MissingError

Files = dict[str, int]  # name within the checkpoint -> size in bytes


def described(path: Path) -> Files:
    """List the files of a checkpoint on disk."""
    found = sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.stat().st_size for file in found}


def whole(folder: Folder) -> dict[int, Files]:
    """Return the files of each whole checkpoint of a run's folder, by step; raises RemoteError."""
    names = [name.removeprefix(f"{DIRECTORY}/") for name in folder.names(DIRECTORY)]
    marks = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    steps = sorted(int(mark) for mark in marks if _is_step(mark))
    found = {}
    for step in steps:
        with contextlib.suppress(MissingError):  # the run, which goes on, has just deleted it
            found[step] = _read_mark(folder, str(step))["files"]
    return found


def _is_step(text: str) -> bool:
    return re.fullmatch(r"0|[1-9][0-9]{0,17}", text) is not None


def steps(folder: Folder) -> set[int]:
    """Return the steps that have any object in the bucket, whole or not."""
    names = (name.partition("/")[2].partition("/")[0] for name in folder.names(DIRECTORY))
    return {int(step) for name in names if _is_step(step := name.partition(".")[0])}


def send(folder: Folder, path: Path) -> Files:
    """Send the files of a checkpoint on disk, without the mark; return them.

    Raises RemoteError; FileNotFoundError: the checkpoint was deleted meanwhile.
    """
    remove(folder, int(path.name))  # an unfinished copy
    return _send(folder, path, path.name)


def send_part(folder: Folder, path: Path, index: int, attempt: str) -> None:
    """Send the part of a checkpoint that process `index` saved, and a mark of that part.

    An `attempt` is one start of the run; only parts of the same attempt belong together.
    """
    part = f"{path.name}/part_{index}"
    _remove(folder, part)
    mark(folder, part, _send(folder, path, part), attempt=attempt)


def parts(folder: Folder, step: int, count: int, attempt: str) -> Files | None:
    """Return the files of all parts of a checkpoint; None if a part is missing."""
    names, found = folder.names(f"{DIRECTORY}/{step}"), {}
    for part in (f"{step}/part_{index}" for index in range(count)):
        said = _read_mark(folder, part) if f"{DIRECTORY}/{part}.json" in names else {}
        if said.get("attempt") != attempt:
            return None
        found |= {f"{part.partition('/')[2]}/{name}": size for name, size in said["files"].items()}
    return found


def mark(folder: Folder, name: str, files: Mapping[str, int], attempt: str = "") -> None:
    """Write the mark of a checkpoint, or of a part, whose files are all in the bucket."""
    said = {"files": files, **({"attempt": attempt} if attempt else {})}
    folder.write(f"{DIRECTORY}/{name}.json", json.dumps(said).encode())


def remove(folder: Folder, step: int) -> None:
    """Delete a checkpoint, its mark first, so that a half-deleted one does not count."""
    _remove(folder, str(step))


def fetch(folder: Folder, files: Mapping[str, int], path: Path) -> None:
    """Copy a checkpoint to `path`, which appears when it is complete; skip files that are lost."""
    place = f"{DIRECTORY}/{path.name}"
    there = folder.names(place)
    temporary = path.with_name(f"{path.name}{FETCHED}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    wanted = {f"{place}/{name}": foreign.inside(temporary, name, folder.url) for name in files}
    folder.fetch((name, file) for name, file in wanted.items() if name in there)
    made = _merged(temporary)
    shutil.rmtree(path, ignore_errors=True)
    made.rename(path)
    shutil.rmtree(temporary, ignore_errors=True)


def _merged(path: Path) -> Path:
    """Merge the parts below a directory and return the merged one; without parts, the directory."""
    parts = [part for part in path.iterdir() if re.fullmatch(r"part_[0-9]{1,9}", part.name)]
    found = sorted(parts, key=lambda part: int(part.name.partition("_")[2]))
    with contextlib.suppress(Exception):  # a restore finds and reports damage
        return merge(found) if found else path
    return found[0]


def _send(folder: Folder, path: Path, name: str) -> Files:
    files = described(path)
    folder.send((path / file, f"{DIRECTORY}/{name}/{file}") for file in files)
    return files


def _remove(folder: Folder, name: str) -> None:
    mark, place = f"{DIRECTORY}/{name}.json", f"{DIRECTORY}/{name}/"
    found = folder.names(str(Path(mark).parent))
    doomed = [name for name in found if name == mark or name.startswith(place)]
    folder.remove(sorted(doomed, key=lambda name: name != mark))


def _read_mark(folder: Folder, name: str) -> dict[str, Any]:
    """Read and check a mark; a stranger may have written its list of files."""
    where = f"{folder.url}/{DIRECTORY}/{name}.json"
    said = foreign.tree(folder.read(f"{DIRECTORY}/{name}.json"), where)
    files = said.get("files")
    if not isinstance(files, dict) or not all(type(size) is int for size in files.values()):
        raise UserError(f"{where} lists no files with their sizes; it is damaged")
    for file in files:
        foreign.checked(file, where)
    return said


def readable(url: str) -> tuple[Path, Callable[[int], None]]:
    """Return a local directory with the metadata of a bucket's checkpoints, and a function.

    The function fetches the arrays of one step into that directory. Neither fetches a file again
    that is there already.
    """
    folder, place = (
        Folder(url),
        files_lib.cache_home() / "vit_jax" / "read" / url.replace("://", "/"),
    )
    steps = place / DIRECTORY
    steps.mkdir(parents=True, exist_ok=True)

    def fetch_missing(step: int, *, arrays: bool = True) -> None:
        path, files = steps / str(step), found[step]
        if any(name.startswith("part_") for name in files):
            if not path.exists():
                fetch(folder, files, path)
            files = {}
        path.mkdir(exist_ok=True)
        files_lib.write(path.with_suffix(".json"), json.dumps(found[step]))
        wanted = [name for name in files if arrays or "/d/" not in f"/{name}"]
        inside = {name: foreign.inside(path, name, folder.url) for name in wanted}
        missing = {name: file for name, file in inside.items() if not file.exists()}
        partial = {name: file.with_name(f"{file.name}.part") for name, file in missing.items()}
        folder.fetch((f"{DIRECTORY}/{step}/{name}", file) for name, file in partial.items())
        for name, file in partial.items():
            file.rename(missing[name])

    def fetch_arrays(step: int) -> None:
        with _alone(place):
            fetch_missing(step)

    with _alone(place):
        found = whole(folder)
        for old in list(steps.glob("*")):
            known = old.with_suffix(".json")
            said = json.loads(known.read_text()) if known.is_file() else None
            if not old.stem.isdecimal() or said != found.get(int(old.stem)):
                shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
        for step in found:
            with contextlib.suppress(MissingError):
                fetch_missing(step, arrays=False)
    return place, fetch_arrays


@contextlib.contextmanager
def _alone(place: Path) -> Iterator[None]:
    """Lock the directory against other processes of this machine; wait for them first."""
    with (place / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
