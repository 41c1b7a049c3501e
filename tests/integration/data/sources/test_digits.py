# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

from vit_jax.data import open_source


def test_two_processes_that_start_at_once_leave_one_whole_dataset(tmp_path):
    code = "import sys, pathlib; from vit_jax.data.sources.digits import prepare; "
    code += "prepare(pathlib.Path(sys.argv[1]))"
    both = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(2)]
    assert [process.wait(120) for process in both] == [0, 0]
    assert [p.name for p in tmp_path.iterdir()] == ["digits"]  # no scratch directory is left
    assert [p.name for p in (tmp_path / "digits").iterdir()] == ["1.0.0"]
    assert len(open_source("digits", str(tmp_path), "train+test")) == 1797
