# SPDX-License-Identifier: Apache-2.0
"""A run goes on where the reader of its lines goes away."""

import errno
import io
import os
import sys
from typing import Any

import pytest

from vit_jax.process.output import outlive_readers


def test_a_closed_pipe_takes_the_rest_of_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    pipe = io.TextIOWrapper(os.fdopen(write, "wb"), line_buffering=True)
    monkeypatch.setattr(sys, "stdout", pipe)
    with outlive_readers():
        print("first")
        assert os.read(read, 99) == b"first\n"
        os.close(read)
        print("second")
        print("third", flush=True)
    assert sys.stdout is pipe
    print("after", file=pipe)
    pipe.close()


def test_other_errors_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(io.RawIOBase):
        broken = True

        def writable(self) -> bool:
            return True

        def write(self, data: Any, /) -> int:
            if self.broken:
                raise OSError(errno.EACCES, "Permission denied")
            return len(data)

    file = Broken()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(file, write_through=True))
    with outlive_readers():
        with pytest.raises(PermissionError):
            print("x", flush=True)
        file.broken = False


def test_a_stream_that_is_no_file_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = io.StringIO()
    monkeypatch.setattr(sys, "stdout", notebook)
    with outlive_readers():
        assert sys.stdout is notebook
