# SPDX-License-Identifier: Apache-2.0
"""What is traced for: the machine's own device, or one that is described; XLA's options there."""

from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from vit_jax.devices import hardware, sharding
from vit_jax.devices.hardware import Target, compiler_options
from vit_jax.devices.sharding import MeshConfig

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


MI300 = Target("gpu", "AMD Instinct MI300X")
V5E = Target("tpu", "TPU v5 lite")
NAME, ON = "xla_gpu_enable_pipelined", True
if jax.__version_info__ >= (0, 12):
    NAME, ON = "xla_gpu_pipeline", "COLLECTIVE_PIPELINING_MODE_ON"
PIPELINED = {f"{NAME}_{kind}" for kind in ("all_gather", "reduce_scatter", "all_reduce")}


class Device:
    """No more of a described device than is asked for."""

    platform = "gpu"


def options(target: Target, count: int) -> dict[str, bool | str]:
    class Described:
        devices = np.full((count,), Device())
        size = count

    with hardware.tracing_for(target):
        return compiler_options(Described(), True)  # pyright: ignore[reportArgumentType]


@pytest.fixture(autouse=True)
def _no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def test_several_nvidia_gpus_move_while_they_compute() -> None:
    assert options(H100, 8) == dict.fromkeys(PIPELINED, ON)
    for target, count in ((H100, 1), (MI300, 8), (V5E, 8)):
        assert not options(target, count)


def test_the_users_flag_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    flag = f"{NAME}_all_gather"
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=x --{flag}=false")
    assert options(H100, 8).keys() == PIPELINED - {flag}


def test_on_a_cpu_xla_convolves_itself_and_sums_what_batch_norm_needs() -> None:
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:2])
    plain, batch_norm = (compiler_options(mesh, has) for has in (False, True))
    kind = "LIBRARY_FUSION_TYPE_"
    assert [*plain.values()] == [f"{kind}INDIVIDUAL_DOT,{kind}REDUCE"]
    assert [*batch_norm.values()] == [f"{kind}INDIVIDUAL_DOT"]
    for options in (plain, batch_norm):  # XLA ignores neither a wrong name nor a wrong value
        jax.jit(lambda x: x + 1).lower(1.0).compile(compiler_options=options)
