# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.photos import write_images


@pytest.fixture
def public():
    """A folder that every user of the machine may enter, as not those of pytest."""
    with tempfile.TemporaryDirectory() as root:
        os.chmod(root, 0o755)
        yield Path(root)


@pytest.mark.parametrize("closed", ["", "train", "train/cat", "train/cat/a.png"])
def test_what_may_not_be_read_is_named(public, closed):
    name = write_images(public / "data", "train/cat/a.png", "train/dog/b.png")
    where = public / "data" / closed
    where.chmod(0)
    code = """
import os, sys
from PIL import Image
from vit_jax import data
from vit_jax.data.sources import folders, partition
from vit_jax.errors import UserError
# Imported now, as another may not read them.
Image.init()
partition.absolute_slices("train", {"train": 2}, "")
if os.getuid() == 0:  # who may read all
    os.setuid(65534)
try:
    source = data.open_source(sys.argv[1])
    print([source.read(i)["label"] for i in range(len(source))])
except (UserError, OSError) as error:
    print(type(error).__name__, error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, name], capture_output=True, text=True, check=False
    )
    where.chmod(0o755)
    assert done.returncode == 0, done.stderr
    if closed.endswith("png"):
        why = "holds no images, but 1 that cannot be read; remove it or fill it"
        assert done.stdout == f"UserError class folder {where.parent} {why}\n"
    else:
        assert done.stdout.startswith(f"UserError {where}")
        assert done.stdout.endswith(": Permission denied\n")
