# SPDX-License-Identifier: Apache-2.0
"""The true cause behind an error of Orbax: the machine's, or damage."""

import errno
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental import multihost_utils

from vit_jax.checkpoints import failures
from vit_jax.checkpoints.failures import cause, chain, reading_error
from vit_jax.checkpoints.manifest import Manifest
from vit_jax.errors import IO_ERROR


def _behind(inner: BaseException) -> RuntimeError:
    """Hide an error as Orbax does: behind two others."""
    error = RuntimeError("outer\nmore")
    error.__context__ = ValueError("middle")
    error.__context__.__cause__ = inner
    return error


@pytest.mark.parametrize(
    "inner, reason",
    [
        (OSError(errno.EMFILE, "Too many open files"), "Too many open files (errno 24)"),
        (OSError(errno.EACCES, "Permission denied"), "Permission denied (errno 13)"),
        (MemoryError(), "Cannot allocate memory (errno 12)"),
        (RuntimeError("can't start new thread"), "Resource temporarily unavailable (errno 11)"),
        (ValueError("x [os_error_code='5' y]"), "Input/output error (errno 5)"),
        (TimeoutError("too long\nand more"), "too long"),
        (OSError(errno.ENOENT, "No such file"), None),
        (ValueError("bad"), None),
    ],
)
def test_the_machine_is_told_from_damage(inner: BaseException, reason: str | None) -> None:
    assert reading_error(_behind(inner)) == reason


def test_the_cause_of_a_failed_save_is_one_short_line() -> None:
    assert cause(_behind(OSError(errno.ENOSPC, "No space left on device"))) == (
        "No space left on device"
    )
    assert cause(_behind(ValueError("first\nsecond"))) == "first"
    assert cause(_behind(ValueError("os_error_code='28'"))) == "No space left on device"


def test_every_error_of_the_chain_is_seen() -> None:
    inner = KeyError("x")
    assert [type(link) for link in chain(_behind(inner))] == [RuntimeError, ValueError, KeyError]


ERROR = OSError(errno.ENOSPC, "No space left on device")


def test_the_error_names_what_a_user_needs(tmp_path: Path) -> None:
    error = failures.failed(tmp_path, 7, 12_340_000, 5, ERROR)
    (line,) = str(error).splitlines()
    assert f"step 7 to {tmp_path} (needs up to 12.3 MB, " in line
    assert line.endswith("MB free; newest intact: step 5): No space left on device")
    assert error.status == IO_ERROR


def test_a_disk_that_is_gone_has_no_free_space(tmp_path: Path) -> None:
    line = str(failures.failed(tmp_path / "gone", 7, 1, None, ERROR))
    assert "unknown MB free; there is no other" in line


def test_one_process_agrees_with_itself() -> None:
    own = failures.Ended(3, Manifest({}, {}, {}), damaged=True)
    assert failures.agreed(own) is own


@pytest.mark.parametrize("mine", [0, 1, 2])
@pytest.mark.parametrize("other", [0, 1, 2])
def test_processes_agree_on_the_worst(
    mine: int, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save ended well, or it failed, or what is there is damaged."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    gather = lambda x: np.asarray([int(x), other])  # noqa: E731
    monkeypatch.setattr(multihost_utils, "process_allgather", gather)
    failed = failures.SaveFailed("no room") if mine else None
    found = failures.agreed(failures.Ended(3, Manifest({}, {}, {}), failed, mine == 2))
    assert found.damaged == (max(mine, other) == 2)
    if mine or not other:
        assert found.failed is failed
    else:
        assert "step 3 could not be saved by another process" in str(found.failed)
