# SPDX-License-Identifier: Apache-2.0
"""The .npz reader: every dtype and order numpy writes, and files that mean harm, by real bytes."""

import tracemalloc
import zipfile
from pathlib import Path

import numpy as np

from tests.refusals import refused_by
from tests.unit.weights.readers.test_npz_file import X, entry, npy, write
from vit_jax.weights import apply
from vit_jax.weights.readers import npz_file


def test_a_bomb_takes_no_memory(tmp_path: Path) -> None:
    """64 MiB in 64 kB: of another shape than the model's, or not the model's at all."""
    bomb = npy(np.zeros((2**12, 2**12), np.float32))
    path = write(tmp_path / "x.npz", {"w.npy": npy(X), "z.npy": bomb}, zipfile.ZIP_DEFLATED)
    assert (tmp_path / "x.npz").stat().st_size < 2**17
    cases = [
        ([entry("w", (3, 4))], "z", None),
        ([entry("w", (3, 4))], "", "z [4096, 4096]"),
        ([entry("z", (3, 4))], "w", "z: in the file [4096, 4096], here [3, 4]"),
    ]
    for entries, ignored, expected in cases:
        tracemalloc.start()
        with npz_file.opened(path) as source:
            if expected is None:
                found = apply.fill(entries, source, is_ignored=ignored.__eq__)
                np.testing.assert_array_equal(found["params/w"], X)
            else:
                with refused_by("weights.apply._check_keys") as caught:
                    apply.fill(entries, source, is_ignored=ignored.__eq__)
                assert expected in str(caught.value)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**21, peak


def test_memory_is_what_the_model_takes(tmp_path: Path) -> None:
    """Of 160 MiB in 20 arrays, 80 are wanted: no more than those and two of 8 MiB at a time."""
    side = 2**21
    arrays = {f"x{i}": np.full(side, i, np.float32) for i in range(20)}
    np.savez(tmp_path / "x.npz", **arrays)
    del arrays
    entries = [entry(f"x{i}", (side,)) for i in range(10)]
    tracemalloc.start()
    with npz_file.opened(str(tmp_path / "x.npz")) as source:
        found = apply.fill(entries, source, is_ignored=lambda key: True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert all((found[f"params/x{i}"] == i).all() for i in range(10))
    assert 80 * 2**20 <= peak < (80 + 3 * 8) * 2**20, peak
