# SPDX-License-Identifier: Apache-2.0
"""What is traced for: the machine's own device, or one that is described."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from vit_jax.devices import hardware
from vit_jax.devices.hardware import Target

H100 = Target("gpu", "NVIDIA H100", (9, 0))


@pytest.mark.parametrize(
    "capability, found", [("9.0", (9, 0)), ("8.6", (8, 6)), ("gfx942", (0, 0)), ("", (0, 0))]
)
def test_a_device_is_described(capability: str, found: tuple[int, int]) -> None:
    device = SimpleNamespace(platform="gpu", device_kind="X", compute_capability=capability)
    assert hardware.of(device) == Target("gpu", "X", found)


def test_cudnn_attends_from_ampere_on() -> None:
    assert H100.has_cudnn
    assert Target("gpu", capability=(8, 0)).has_cudnn
    assert not Target("gpu", capability=(7, 5)).has_cudnn
    assert not Target("tpu").has_cudnn


@pytest.mark.parametrize("maker", ["AuthenticAMD", "GenuineIntel"])
def test_a_forward_pass_in_bfloat16_is_faster_on_amds_cpus(
    maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(f"vendor_id : {maker}\nflags : avx512f avx512_bf16")
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
    with hardware.tracing_for(Target("cpu")):
        assert bool(hardware.slow_dtype("bfloat16", "model.dtype")) == (maker == "GenuineIntel")
        assert hardware.slow_dtype("bfloat16", "model.dtype", training=True)


@pytest.mark.parametrize(
    "platform, features, dtype, said",
    [
        ("cpu", "avx512f avx512_bf16", "bfloat16", True),
        ("cpu", None, "bfloat16", True),
        ("cpu", "avx512_bf16 amx_bf16", "bfloat16", False),
        ("cpu", "avx512_bf16", "float32", False),
        ("tpu", "avx512_bf16", "bfloat16", False),
    ],
)
def test_bfloat16_is_slower_on_a_cpu_without_amx(
    platform: str,
    features: str | None,
    dtype: str,
    said: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hardware, "_CPU_INFO", tmp_path / "cpuinfo")
    if features:
        (tmp_path / "cpuinfo").write_text(f"flags : {features}")
    with hardware.tracing_for(Target(platform)):
        line = hardware.slow_dtype(dtype, "model.dtype")
    assert line.endswith("on this CPU: model.dtype=float32") == said == bool(line)


def test_a_described_device_counts_inside_the_block_alone() -> None:
    assert hardware.target().platform == "cpu"
    with hardware.tracing_for(H100):
        assert hardware.target() is H100
        with pytest.raises(KeyError), hardware.tracing_for(Target("tpu")):
            raise KeyError
        assert hardware.target() is H100
    assert hardware.target().platform == "cpu"
