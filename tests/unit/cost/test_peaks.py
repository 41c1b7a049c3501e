# SPDX-License-Identifier: Apache-2.0
"""Device kinds as the drivers report them, and what must not match."""

import pytest

from vit_jax.cost.peaks import peak_flops


@pytest.mark.parametrize(
    ("kind", "bf16", "f32"),
    [
        ("TPU v3", 61.5, 61.5),
        ("TPU v4", 275, 275),
        ("TPU v5 lite", 197, 197),
        ("TPU v5", 459, 459),
        ("TPU v5p", 459, 459),
        ("TPU v6 lite", 918, 918),
        ("TPU7x", 1153.5, 1153.5),
        ("NVIDIA A100-SXM4-40GB", 312, 156),
        ("NVIDIA H100 80GB HBM3", 989.4, 494.7),
        ("NVIDIA H100 PCIe", 756, 378),
        ("NVIDIA H100 NVL", 835.5, 417.5),
        ("NVIDIA H200", 989.4, 494.7),
        ("NVIDIA GH200 480GB", 989.4, 494.7),
        ("NVIDIA B200", 2250, 1125),
        ("NVIDIA GB200", 2500, 1250),
        ("NVIDIA L4", 121, 60),
        ("NVIDIA L40S", 362, 183),
        ("NVIDIA A10G", 70, 35),
        ("NVIDIA GeForce RTX 3090", 71.2, 35.6),
        ("NVIDIA GeForce RTX 3090 Ti", 80, 40),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
        ("Tesla V100-SXM2-16GB", 15.7, 15.7),
        ("Tesla T4", 8.1, 8.1),
    ],
)
def test_known(kind, bf16, f32):
    assert peak_flops(kind) == pytest.approx(bf16 * 1e12)
    assert peak_flops(kind, "float32") == pytest.approx(f32 * 1e12)


@pytest.mark.parametrize(
    "kind", ["cpu", "TPU v4 lite", "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H20", ""]
)
def test_unknown(kind):
    assert peak_flops(kind) is None
