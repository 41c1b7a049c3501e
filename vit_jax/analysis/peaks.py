# SPDX-License-Identifier: Apache-2.0
"""Peak matmul throughput by kind of device, the denominator of MFU (vendors' data sheets)."""

import re

# TFLOP/s of one JAX device with dense operands (NVIDIA's sheets quote twice that, "with sparsity").
# bf16: bf16 operands, f32 accumulation. f32: what JAX runs for float32 operands by default: one
# bf16 pass on a TPU, TF32 on NVIDIA from Ampere on, plain float32 before. GPUs older than Ampere
# have no bf16 units: XLA computes in f32 there, so both columns are the f32 rate.
# The first pattern found in the kind of device decides.
_PEAKS: tuple[tuple[str, float, float], ...] = (
    # docs.cloud.google.com/tpu/docs, the page of each version, per chip: v2 45, v3 123, v4 275,
    # v5e 197, v5p 459, v6e 918, TPU7x 2307. JAX sees two devices in a chip of v2, v3 and TPU7x.
    (r"^TPU v2$", 22.5, 22.5),
    (r"^TPU v3$", 61.5, 61.5),
    (r"^TPU v4$", 275, 275),
    (r"^TPU v5( lite|e)$", 197, 197),
    (r"^TPU v5p?$", 459, 459),
    (r"^TPU v6( lite|e)$", 918, 918),
    (r"^TPU7x$", 1153.5, 1153.5),
    # NVIDIA's data sheet of each product.
    (r"\bGB[23]00\b", 2500, 1250),  # NVL72: 360 PFLOP/s sparse over 72 GPUs
    (r"\bB[23]00\b", 2250, 1125),  # HGX: 36 PFLOP/s sparse over 8 GPUs
    (r"\bH[12]00 NVL", 835.5, 417.5),
    (r"\bH100 PCIe", 756, 378),
    (r"\b(GH200|H200|H100|H800)\b", 989.4, 494.7),
    (r"\bA[18]00\b", 312, 156),
    (r"\bA30\b", 165, 82),
    (r"\bA10G\b", 70, 35),  # aws.amazon.com/ec2/instance-types/g5
    (r"\bA10\b", 125, 62.5),
    (r"\bA40\b", 149.7, 74.8),
    (r"\bL40S\b", 362, 183),
    (r"\bL40\b", 181, 90.5),
    (r"\bL4\b", 121, 60),
    (r"\bRTX 6000 Ada", 364.2, 182.1),
    (r"\bRTX A6000", 154.8, 77.4),
    # GeForce: the GA102, AD102 and RTX Blackwell whitepapers. Exact names, as a Ti, a SUPER and a
    # laptop part differ; TF32 runs at the shaders' f32 rate and bf16 at twice that.
    (r"\bRTX 3060 Ti$", 32.4, 16.2),
    (r"\bRTX 3070$", 40.6, 20.3),
    (r"\bRTX 3080$", 59.5, 29.8),
    (r"\bRTX 3090$", 71.2, 35.6),
    (r"\bRTX 3090 Ti$", 80, 40),
    (r"\bRTX 4070$", 58.3, 29.1),
    (r"\bRTX 4080$", 97.5, 48.7),
    (r"\bRTX 4090$", 165.2, 82.6),
    (r"\bRTX 5080$", 112.6, 56.3),
    (r"\bRTX 5090$", 209.5, 104.8),
    (r"\bV100\b", 15.7, 15.7),
    (r"\bP100\b", 10.6, 10.6),
    (r"\bT4\b", 8.1, 8.1),
)


def peak_flops(device_kind: str, dtype: str = "bfloat16") -> float | None:
    """Return the peak matmul FLOP/s of one device, or None where it is not known, as for CPUs.

    Args:
        device_kind: `jax.Device.device_kind`, such as "TPU v4" or "NVIDIA H200".
        dtype: of the matmuls' operands: "bfloat16" (float16 alike) or "float32".
    """
    for pattern, bf16, f32 in _PEAKS:
        if re.search(pattern, device_kind):
            return 1e12 * (f32 if dtype == "float32" else bf16)
    return None


# GHz of the TensorCores: of v2, v3 and v4 from arXiv:2304.01433 table 4; those of v5e and v5p give
# the peaks above with four matrix units of 128 x 128 a core.
_TPU_CLOCKS = {"TPU v2": 0.7, "TPU v3": 0.94, "TPU v4": 1.05, "TPU v5 lite": 1.5, "TPU v5": 1.75}


def clock(device_kind: str) -> float | None:
    """Return the cycles per second of a TPU's cores, or None where they are not known."""
    ghz = _TPU_CLOCKS.get(device_kind)
    return None if ghz is None else 1e9 * ghz
