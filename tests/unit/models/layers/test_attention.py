# SPDX-License-Identifier: Apache-2.0
"""The transformer's layers against their definitions."""

import math
import types

import numpy as np
import pytest

from vit_jax.devices import hardware
from vit_jax.errors import UserError
from vit_jax.models.layers.attention import AttentionImpl, check_impl, check_target
from vit_jax.models.layers.posemb import PosEmbed, sincos2d


def test_sincos_table() -> None:
    table = sincos2d(2, 3, 8)
    assert table.shape == (6, 8)
    # Row 1, column 2 of the grid: x = 2, y = 1; two frequencies, 1 and 1/10000.
    expected = [np.sin(2), np.sin(2e-4), np.cos(2), np.cos(2e-4)]
    expected += [np.sin(1), np.sin(1e-4), np.cos(1), np.cos(1e-4)]
    np.testing.assert_allclose(table[5], expected, atol=1e-7)


def mae_table(rows: int, columns: int, dim: int) -> np.ndarray:
    """Write MAE's table out, number by number."""
    table = np.zeros((rows, columns, dim))
    for i in range(dim // 4):
        omega = 1 / 10000 ** (i / (dim / 4))
        for y in range(rows):
            for x in range(columns):
                found = math.sin(x * omega), math.cos(x * omega)
                found += math.sin(y * omega), math.cos(y * omega)
                table[y, x, [i + part * dim // 4 for part in range(4)]] = found
    return table.reshape(-1, dim)


def test_sincos_table_of_mae() -> None:
    table = sincos2d(3, 4, 24, PosEmbed.SINCOS2D_MAE)
    np.testing.assert_allclose(table, mae_table(3, 4, 24), atol=1e-6)
    # Of its authors' code, 4 x 4 patches and a width of 48: row 3, column 2, every sixth channel.
    golden = [
        0.9092974,
        0.0199987,
        -0.4161468,
        0.9998000,
        0.1411200,
        0.0299955,
        -0.9899925,
        0.9995500,
    ]
    np.testing.assert_allclose(
        sincos2d(4, 4, 48, PosEmbed.SINCOS2D_MAE)[14, ::6], golden, atol=1e-6
    )
    assert np.abs(table - sincos2d(3, 4, 24)).max() > 0.1


@pytest.mark.parametrize(
    "capability, runs",
    [("9.0", True), ("12.0", True), ("8.0", True), ("7.5", False), ("gfx942", False)],
)
def test_flash_attention_is_for_nvidia_from_ampere_on(capability: str, runs: bool) -> None:
    device = types.SimpleNamespace(platform="gpu", device_kind="", compute_capability=capability)
    assert hardware.of(device).has_cudnn == runs
    assert not hardware.target().has_cudnn


def test_what_a_kernel_cannot_compute_is_refused() -> None:
    check_impl(AttentionImpl.CUDNN, True, 128, 0.0)
    check_impl(AttentionImpl.XLA, False, 6, 0.5)
    with pytest.raises(UserError, match=r"^model\.attention=pallas cannot drop weights; set model"):
        check_impl(AttentionImpl.PALLAS, True, 64, 0.1)
    for half, width in ((False, 64), (True, 6), (True, 136)):
        told = rf"attention=cudnn needs model\.dtype=bfloat16 and .* \(dim/num_heads={width}\)"
        with pytest.raises(UserError, match=told):
            check_impl(AttentionImpl.CUDNN, half, width, 0.0)


def test_training_on_hardware_without_the_kernel_is_refused() -> None:
    h100 = hardware.Target("gpu", "NVIDIA H100 80GB HBM3", (9, 0))
    check_target(AttentionImpl.AUTO)
    with hardware.tracing_for(h100):
        check_target(AttentionImpl.CUDNN)
        told = "^model.attention=pallas needs a TPU, not NVIDIA H100 80GB HBM3; choose auto$"
        with pytest.raises(UserError, match=told):
            check_target(AttentionImpl.PALLAS)
    told = "^model.attention=cudnn needs an NVIDIA GPU from Ampere on, not cpu; choose auto$"
    with hardware.tracing_for(hardware.Target("cpu")), pytest.raises(UserError, match=told):
        check_target(AttentionImpl.CUDNN)
