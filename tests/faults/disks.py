# SPDX-License-Identifier: Apache-2.0
"""Disks that are full or fail, and limits of a process, for a while."""

import contextlib
import errno
import resource
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path


@contextlib.contextmanager
def small(place: Path) -> Iterator[Path | None]:
    """Mount 64 MB at `place`; None where that is not allowed."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(place)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextlib.contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a disk to its last byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
    yield
    ballast.unlink()


@contextlib.contextmanager
def limited(process: subprocess.Popen, what: int, most: int = 0) -> Iterator[None]:
    """Set a limit of a process."""
    before = resource.prlimit(process.pid, what)
    resource.prlimit(process.pid, what, (most, before[1]))
    yield
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, what, before)


def failing(place: Path) -> tuple[Path, Mapping[str, str]] | None:
    """Compile what makes reads of checkpoints fail with EIO; None without a C compiler.

    Returns:
        The file that switches it on by being there, and the environment of a process.
    """
    if shutil.which("cc") is None:
        return None
    library = place / "failing_disk.so"
    source = Path(__file__).with_name("failing_disk.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
    switch = place / "failing"
    return switch, {"LD_PRELOAD": str(library), "FAILING_DISK": str(switch)}
