# SPDX-License-Identifier: Apache-2.0
"""What a long run prints, to a reader that may go away before it ends."""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import TextIO

# The pipe or terminal is closed, or the disk of the log is full: the run goes on without its log.
_DROPPED = (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class _Outliving(io.TextIOWrapper):
    """A stream that drops what it is given once its reader is gone or its file cannot grow."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)
            super().flush()

    def _drop(self, error: OSError) -> None:
        if error.errno not in _DROPPED:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def outlive_readers() -> Iterator[None]:
    """Go on where whoever reads standard output or error stops: `| head`, a terminal that closes.

    Streams that are no files, such as a notebook's, are left as they are.
    """
    before = sys.stdout, sys.stderr
    inside = sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in inside:
            if isinstance(stream, _Outliving):
                stream.flush()
                stream.detach()  # what it wrapped stays open


def _outliving(stream: TextIO) -> TextIO:
    if type(stream) is not io.TextIOWrapper:  # None where the program began without it
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    return _Outliving(
        stream.buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,  # of python -u and $PYTHONUNBUFFERED
    )


def show(text: str) -> int:
    """Print a help; returns the exit status, a shell's for SIGPIPE where a reader had enough."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes at its end
        return 141
    return 0
