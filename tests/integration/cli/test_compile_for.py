# SPDX-License-Identifier: Apache-2.0
"""`main.py --compile_for` reports what the compilers of other hardware make of a run."""

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import jax
import pytest

from tests.aot.programs import need
from tests.unit.cli.test_compile_for import DIGITS
from vit_jax.cli.train import main
from vit_jax.cost import topology
from vit_jax.errors import UserError


@pytest.mark.slow
@pytest.mark.parametrize("hardware, mesh", [("h100:8", "fsdp"), ("v5e:1x1", "data")])
def test_a_run_is_compiled_and_reported(
    hardware: str, mesh: str, capsys: pytest.CaptureFixture[str]
) -> None:
    need(hardware)
    wide = ("--config.model.dim=512", "--config.model.mlp_dim=2048", "--config.model.depth=2")
    small = ("--config.model.dim=64", "--config.model.mlp_dim=128", "--config.model.depth=1")
    sizes = (*wide, "--config.mesh.data=1", "--config.mesh.fsdp=-1") if mesh == "fsdp" else small
    status = main([*DIGITS, *sizes, f"--compile_for={hardware}"])
    out, err = capsys.readouterr()
    first, *waiting = err.splitlines()
    assert (status, first) == (0, f"compiling for {hardware}, which takes minutes")
    # No time is estimated: it is no CPU's compiler.
    assert {re.sub(r" took \w+", "", line) for line in waiting} <= {
        "compiling train_step",
        "compiling score_batch",
    }
    lines = out.splitlines()
    assert lines[0].startswith(f"COMPILED for {hardware}: ")
    for section in ("MEMORY", "LARGEST TEMPORARIES", "COLLECTIVES", "WHOLE COPIES", "TIME"):
        assert any(line.startswith(section) for line in lines), section
    assert any(line.startswith("evaluation: batch ") for line in lines)
    plan = next(line.split() for line in lines if line.startswith("plan "))
    assert len(plan) == 5  # the step's and the evaluation's, each a number and a unit
    traffic = [line.split() for line in lines if " fsdp " in line and line.startswith("all-gather")]
    assert bool(traffic) == (mesh == "fsdp")
    if mesh == "fsdp":  # two blocks, forward and backward; pipelining takes one out of each loop
        total, in_loops = int(traffic[0][2]), int(traffic[0][3])
        assert total >= 4
        assert in_loops >= 2


@pytest.mark.slow
def test_what_the_data_would_say_is_assumed_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    need("v5e:1x1")
    left = ("--config.model.num_classes=0", "--config.data.batch_size=0", "--config.duration=auto")
    left = (*left, "--config.optim.warmup=5%")
    small = ("--config.model.dim=64", "--config.model.mlp_dim=128", "--config.model.depth=1")
    assert main([*DIGITS, *left, *small, "--compile_for=v5e:1x1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("step: batch 128, ")
    assert "assumed, as the data are not read: 1,000 classes and a batch of 128" in lines


def test_a_compilers_words_are_counted_and_shown(capfd: pytest.CaptureFixture[str]) -> None:
    told = b"W0000 spmd_partitioner.cc:1] [SPMD] Involuntary full rematerialization. The compiler\n"
    lowered = types.SimpleNamespace(compile=lambda **_: os.write(2, told))
    assert topology.compile_lowered(lowered).num_rematerialized == 1
    assert capfd.readouterr().err == told.decode()


def test_a_program_stays_out_of_the_cache(tmp_path: Path) -> None:
    code = (
        "import os; import jax; from vit_jax.cost import topology\n"
        "kept = lambda: len(os.listdir(os.environ['JAX_COMPILATION_CACHE_DIR']))\n"
        "traced = lambda n: jax.jit(lambda x: x + n).lower(1.0)\n"
        "topology.compile_lowered(traced(1)); before = kept()\n"
        "traced(2).compile(); print(before, kept() > before)"
    )
    env = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout == "0 True\n", done.stderr


def test_a_program_that_does_not_compile_is_one_line() -> None:
    def fail(compiler_options: object) -> None:
        raise jax.errors.JaxRuntimeError("INTERNAL: cannot route\nbacktrace")

    with pytest.raises(UserError, match=r"^does not compile: INTERNAL: cannot route$"):
        topology.compile_lowered(types.SimpleNamespace(compile=fail))
