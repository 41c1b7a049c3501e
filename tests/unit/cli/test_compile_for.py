# SPDX-License-Identifier: Apache-2.0
"""`main.py --compile_for` reports what the compilers of other hardware make of a run."""

import importlib.util

import jax
import pytest

from tests.aot.programs import need
from vit_jax import errors
from vit_jax.cli import compile_for
from vit_jax.cli.train import main
from vit_jax.cost import topology
from vit_jax.devices.sharding import MeshConfig, abstract_mesh, shardings

DIGITS = ("main.py", "--config=configs/vit_mu_digits.py", "--config.model.scan_unroll=1")


def test_two_reports_at_once_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*DIGITS, "--dry_run", "--compile_for=v5e:4x4"]) == 2
    assert capsys.readouterr().err == (
        "error: --dry_run and --compile_for are two reports; ask for one of them\n"
    )


@pytest.mark.parametrize("hardware, extra", [("v5e:4x4", "aot-tpu"), ("h100:8", "aot-gpu")])
def test_without_its_compiler_the_extra_is_named(
    hardware: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda *_: None)
    assert main([*DIGITS, f"--compile_for={hardware}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(errors.install(extra))


@pytest.mark.parametrize(
    "flag, told",
    [
        ("--compile_for=v5e", "name hardware as GENERATION:SHAPE"),
        ("--compile_for=v9:4x4", "unknown hardware v9"),
        ("--compile_for=v4:4x4", "has 3 sides"),
        ("--compile_for=h100:8 --config.mesh.data=4", "takes 4 of the 8 devices of h100:8"),
        ("--compile_for=h100:7", "cannot be split over 7 devices"),
        ("--compile_for=", "name hardware as GENERATION:SHAPE"),
    ],
)
def test_what_cannot_be_is_one_line(
    flag: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    need("h100:8")
    assert main([*DIGITS, *flag.split()]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line


def test_out_of_memory_is_told_with_its_numbers() -> None:
    message = (
        "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space "
        "hbm. Used 20.32G of 15.75G hbm. Exceeded hbm capacity by 4.57G.\n\nTotal hbm usage >= 20G"
    )
    told = topology.reason(message)
    assert told.startswith("does not compile: out of memory, 20.32 GiB needed of the 15.75 GiB")
    assert topology.reason("INTERNAL: no\nmore") == "does not compile: INTERNAL: no"


def test_large_leaves_that_an_axis_could_divide_are_named() -> None:
    mesh = abstract_mesh(MeshConfig(data=1, fsdp=4, tensor=2), 8)
    shapes = {
        "fc1": {"kernel": (1024, 4096)},  # cut over both
        "other": {"table": (1024, 1024), "odd": (1025, 1023)},
        "norm": {"scale": (1024,)},
    }
    tree = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, "float32"),
        shapes,
        is_leaf=lambda x: isinstance(x, tuple),
    )
    placed = jax.tree.map(
        lambda leaf, where: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where),
        tree,
        shardings(tree, mesh),
    )
    assert compile_for.undivided(placed, "fsdp", dict(mesh.shape)) == (["other/table"], 2**22)
    assert compile_for.undivided(placed, "data", dict(mesh.shape)) == ([], 0)
