# SPDX-License-Identifier: Apache-2.0
"""A save that failed is one line with the disk, the bytes and the checkpoint to go back to."""

import errno
from pathlib import Path

from vit_jax.checkpoints import ended
from vit_jax.checkpoints.manifest import Manifest
from vit_jax.errors import IO_ERROR

ERROR = OSError(errno.ENOSPC, "No space left on device")


def test_the_error_names_what_a_user_needs(tmp_path: Path) -> None:
    error = ended.failed(tmp_path, 7, 12_340_000, 5, ERROR)
    (line,) = str(error).splitlines()
    assert f"step 7 to {tmp_path} (needs up to 12.3 MB, " in line
    assert line.endswith("MB free; newest intact: step 5): No space left on device")
    assert error.status == IO_ERROR


def test_a_disk_that_is_gone_has_no_free_space(tmp_path: Path) -> None:
    line = str(ended.failed(tmp_path / "gone", 7, 1, None, ERROR))
    assert "unknown MB free; there is no other" in line


def test_one_process_agrees_with_itself() -> None:
    own = ended.Ended(3, Manifest({}, {}, {}), damaged=True)
    assert ended.agreed(own) is own
