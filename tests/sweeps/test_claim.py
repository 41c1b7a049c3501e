# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

from tests.sweeps import files
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
    code = (
        "import sys; from pathlib import Path; from vit_jax.sweeps.claim import holder\n"
        "while True: holder(Path(sys.argv[1]), 'run')"
    )
    (tmp_path / "claims").mkdir()
    (tmp_path / "claims" / "run").touch()
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=files.ROOT)
    try:
        for _ in range(50):
            with claim(tmp_path, "run") as descriptor:
                assert descriptor is not None
    finally:
        process.kill()
        process.wait()


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
