# SPDX-License-Identifier: Apache-2.0
"""Which options of XLA a step is compiled with."""

import jax
import numpy as np
import pytest

from vit_jax.devices import hardware, sharding
from vit_jax.devices.hardware import Target
from vit_jax.devices.sharding import MeshConfig
from vit_jax.train.compiler import compiler_options

H100 = Target("gpu", "NVIDIA H100 80GB HBM3", (9, 0))
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
