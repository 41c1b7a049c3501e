# SPDX-License-Identifier: Apache-2.0
"""Fuzz the readers of strangers' files, guided by coverage, for as long as one likes.

    pip install atheris
    python -m tests.faults.fuzz npz -max_total_time=600

The reader is `npz`, `safetensors` or `image`; what follows are libFuzzer's options. It stops at the
first file that is neither read as it says nor refused in one line, and leaves it in the current
folder as crash-... .
"""

import functools
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path

import atheris  # pyright: ignore[reportMissingImports]

with atheris.instrument_imports(include=["vit_jax.data", "vit_jax.weights", "PIL", "zipfile"]):
    from tests.faults import test_fuzz_images as images
    from tests.faults import test_weights_fuzz as weights
    from vit_jax.weights.readers import npz_file, safetensors_file


def readers(place: Path) -> dict[str, tuple[Callable[[bytes], None], Collection[bytes]]]:
    """Return each reader's check of a file's bytes, and sound files to begin with."""
    return {
        "npz": (functools.partial(weights.check, npz_file.opened, place), weights.NPZ),
        "safetensors": (
            functools.partial(weights.check, safetensors_file.opened, place),
            [weights.SAFETENSORS],
        ),
        "image": (
            functools.partial(images.check, channels=3, exact=False),
            images.FILES.values(),
        ),
    }


def main() -> None:
    folder = Path(tempfile.mkdtemp())
    check, sound = readers(folder / "x")[sys.argv[1]]
    corpus = folder / "corpus"
    corpus.mkdir()
    for i, data in enumerate(sound):
        (corpus / str(i)).write_bytes(data)
    atheris.Setup([sys.argv[0], *sys.argv[2:], str(corpus)], check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
