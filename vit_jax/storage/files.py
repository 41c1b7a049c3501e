# SPDX-License-Identifier: Apache-2.0
"""Files that appear complete or not at all, and the one rule for what is there already."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from vit_jax.errors import UserError, setting


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name beside `path`; what is written there takes the place of `path` at the end.

    It is on the disk before it is renamed. After an error `path` is what it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write(path: Path, content: str | bytes) -> None:
    """Write a file as `replacing` does."""
    with replacing(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


def sync(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextlib.contextmanager
def refused(task: str, after: str = "") -> Iterator[None]:
    """Turn an OSError into a UserError of one line: `task`, the system's reason, `after`."""
    try:
        yield
    except BrokenPipeError:  # no fault: a reader such as `head` has enough
        raise
    except OSError as error:
        raise UserError(f"{task}: {error.strerror or error}{after}") from None


def make_folder(folder: Path, flag: str) -> None:
    """Make a folder that `flag` names, and refuse one in which no file can be written."""
    with refused(f"{flag}={folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".{os.getpid()}.tmp"
        probe.touch()
        probe.unlink()


def check_file(file: Path, flag: str, *, force: bool, suffix: str = "") -> None:
    """Raise UserError for a file that cannot be written, or exists and may not be replaced.

    Devices and pipes, such as /dev/null, pass. `flag` names the file in messages, `suffix` is the
    ending of its format.
    """
    if suffix and file.suffix.lower() != suffix:
        raise UserError(f"{flag}={file} must end in {suffix}, which is what is written")
    if not file.parent.is_dir():
        raise UserError(f"{flag}={file}: {file.parent} is no directory; make it first")
    if file.is_dir() or (file.is_file() and not force):
        raise UserError(
            f"{flag}={file} is there already; choose another name, or add {setting('force')}"
        )
    if not file.exists() and not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"{flag}={file}: {file.parent} may not be written to")


def write_folder(folder: Path, contents: Mapping[str, bytes]) -> None:
    """Write files by name, in their order; a new folder appears with all of them.

    In one that is there, each file takes its place when all of them are on disk.
    """
    folder = folder.resolve()  # "." has no name to put the temporary one beside
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with refused(f"cannot write {folder}"):
        try:
            temporary.mkdir(parents=True)
            for name, data in contents.items():
                write(temporary / name, data)
            if not folder.exists():
                temporary.rename(folder)
                return
            for name in contents:
                (temporary / name).replace(folder / name)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_folder(folder: Path, flag: str, *, force: bool) -> None:
    """Raise UserError for a folder that cannot be written, or holds files that are not hidden."""
    if not folder.resolve().name:
        raise UserError(f"{flag}={folder} has no name of its own; name a folder below it")
    above = [parent for parent in folder.parents if parent.exists() and not parent.is_dir()]
    if above:
        raise UserError(f"{flag}={folder}: {above[0]} is no directory; name another folder")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{flag}={folder} is a file; name a folder")
    with refused(f"cannot read {folder}"):
        shown = [name for name in os.listdir(folder) if name[0] != "."] if folder.is_dir() else []
    if shown and not force:
        advice = (
            f"choose another, or add {setting('force')}, which replaces those of the same names"
        )
        raise UserError(f"{flag}={folder} holds files already; {advice}")


def cache_home() -> Path:
    """Return where programs keep what they can make anew: $XDG_CACHE_HOME or ~/.cache."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification ignores relative paths.
    return given if given.is_absolute() else Path.home() / ".cache"
