# SPDX-License-Identifier: Apache-2.0
"""Peak matmul throughput by kind of device, the denominator of MFU (vendors' data sheets)."""

import functools
import re
from pathlib import Path

# GHz of the TensorCores: of v2, v3 and v4 from arXiv:2304.01433 table 4; those of v5e and v5p give
# the peaks of peaks.tsv with four matrix units of 128 x 128 a core.
_TPU_CLOCKS = {"TPU v2": 0.7, "TPU v3": 0.94, "TPU v4": 1.05, "TPU v5 lite": 1.5, "TPU v5": 1.75}


@functools.cache
def rows(name: str) -> list[list[str]]:
    """Read the rows of a .tsv file beside this one; those that begin with # are comments."""
    lines = Path(__file__).with_name(name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t") for line in lines if not line.startswith("#")]


def peak_flops(device_kind: str, dtype: str = "bfloat16") -> float | None:
    """Return the peak matmul FLOP/s of one device, or None where it is not known, as for CPUs.

    `device_kind` is jax's, such as "TPU v4" or "NVIDIA H200"; the operands' `dtype` is "bfloat16"
    (float16 alike) or "float32".
    """
    for pattern, bf16, f32 in rows("peaks.tsv"):
        if re.search(pattern, device_kind):
            return 1e12 * float(f32 if dtype == "float32" else bf16)
    return None


def clock(device_kind: str) -> float | None:
    """Return the cycles per second of a TPU's cores, or None where they are not known."""
    ghz = _TPU_CLOCKS.get(device_kind)
    return None if ghz is None else 1e9 * ghz
