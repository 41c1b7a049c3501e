# SPDX-License-Identifier: Apache-2.0
"""The benchmark of a step's operations compares the same operations."""

import jax
import numpy as np
import pytest

from benchmarks import cpu_operations
from benchmarks.cpu_operations import CASES, Convolution, Product

torch = pytest.importorskip("torch")
SMALL = {
    **{f"product {of}": Product(6, 4, 5, of) for of in ("result", "x", "w")},
    **{
        f"{groups} groups {of}": Convolution(2, 5, 8, groups, of)
        for groups in (1, 4)
        for of in ("result", "x", "w")
    },
    **{f"7x7 {of}": Convolution(2, 9, 8, 8, of, 7) for of in ("result", "x", "w")},
}


@pytest.mark.parametrize("case", SMALL.values(), ids=SMALL)
def test_both_sides_compute_the_same(case: Product | Convolution) -> None:
    ours = np.asarray(cpu_operations.ours(case)(**jax.device_put(cpu_operations.arrays(case))))
    theirs = cpu_operations.theirs(torch, case)()
    if isinstance(theirs, tuple):
        (theirs,) = (part for part in theirs if part is not None)
    theirs = theirs.numpy()
    if isinstance(case, Product):
        theirs = theirs.T if case.of == "w" else theirs
    else:
        theirs = theirs.transpose((2, 3, 1, 0) if case.of == "w" else (0, 2, 3, 1))
    np.testing.assert_allclose(ours, theirs, atol=5e-5)


def test_every_kind_of_operation_is_measured() -> None:
    kinds = {(type(case), getattr(case, "groups", 1) > 1, case.of) for case in CASES.values()}
    assert len(kinds) == 9
