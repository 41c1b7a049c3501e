# SPDX-License-Identifier: Apache-2.0
import fcntl
import os
import subprocess
import threading
from pathlib import Path

from vit_jax.sweeps.claim import claim, holder


def test_a_run_is_claimed_once(tmp_path: Path) -> None:
    assert holder(tmp_path, "run") is None
    with claim(tmp_path, "run") as first:
        assert first is not None
        told = holder(tmp_path, "run")
        assert told is not None
        assert told.startswith(f"pid {os.getpid()} on ")
        with claim(tmp_path, "run") as second:
            assert second is None
        with claim(tmp_path, "another") as other:
            assert other is not None
    assert holder(tmp_path, "run") is None
    with claim(tmp_path, "run") as again:
        assert again is not None


def test_a_look_does_not_keep_a_worker_from_its_claim(tmp_path: Path) -> None:
    with claim(tmp_path, "run"):  # makes the file
        pass
    with open(tmp_path / "claims" / "run") as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)  # as `holder` has it for a moment
        moment = threading.Timer(0.05, fcntl.flock, (looked_at, fcntl.LOCK_UN))
        moment.start()
        with claim(tmp_path, "run") as descriptor:
            assert descriptor is not None
        moment.join()


def test_a_process_that_inherits_the_claim_holds_it(tmp_path: Path) -> None:
    with claim(tmp_path, "run") as descriptor:
        assert descriptor is not None
        process = subprocess.Popen(["sleep", "60"], pass_fds=(descriptor,))
    try:
        assert holder(tmp_path, "run") is not None
        with claim(tmp_path, "run") as second:
            assert second is None
    finally:
        process.kill()
        process.wait()
    assert holder(tmp_path, "run") is None
