# SPDX-License-Identifier: Apache-2.0
import subprocess
from pathlib import Path

from vit_jax.sweeps.queue import claim, holder


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
