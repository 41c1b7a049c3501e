# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

from tests.unit.data.conftest import encode
from tests.unit.data.images.test_header import BOMBS


def test_refusing_takes_no_memory(tmp_path, photo):
    """Decoded, each would take 0.8 GB; the long chunk takes OpenCV 2 GB."""
    for form, data in BOMBS.items():
        (tmp_path / form).write_bytes(data)
    png = bytearray(encode(photo[:48, :64], "PNG"))
    at = png.index(b"IDAT")
    png[at - 4 : at] = (2**31 - 1).to_bytes(4)  # of a chunk that has no more than the file
    (tmp_path / "long chunk").write_bytes(png)
    code = """
import contextlib, resource, sys
from pathlib import Path
from PIL import Image
from vit_jax.data.decode import decode
Image.preinit()
files = [path.read_bytes() for path in Path(sys.argv[1]).iterdir()]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for data in files:
    with contextlib.suppress(ValueError):
        decode(data, 3)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100 * 1024  # kB
