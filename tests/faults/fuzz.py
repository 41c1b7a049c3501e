# SPDX-License-Identifier: Apache-2.0
"""Fuzz the readers of weights, guided by coverage, for as long as one likes.

    pip install atheris
    python -m tests.faults.fuzz npz -max_total_time=600

The reader is `npz` or `safetensors`; what follows are libFuzzer's options. It stops at the first
file that is neither read as its header says nor refused in one line, and keeps it.
"""

import sys
import tempfile
from pathlib import Path

import atheris  # pyright: ignore[reportMissingImports]

with atheris.instrument_imports(include=["vit_jax.weights", "zipfile"]):
    from vit_jax.weights import npz_file, safetensors_file

from tests.faults.test_weights_fuzz import NPZ, SAFETENSORS, check

READERS = {"npz": (npz_file.opened, NPZ), "safetensors": (safetensors_file.opened, (SAFETENSORS,))}


def main() -> None:
    opened, good = READERS[sys.argv[1]]
    folder = Path(tempfile.mkdtemp())
    corpus = folder / "corpus"
    corpus.mkdir()
    for i, data in enumerate(good):
        (corpus / str(i)).write_bytes(data)
    place = folder / "x"
    options = [sys.argv[0], *sys.argv[2:], str(corpus)]
    atheris.Setup(options, lambda data: check(opened, place, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
