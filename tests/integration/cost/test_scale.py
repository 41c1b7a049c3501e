# SPDX-License-Identifier: Apache-2.0
"""The predictions: what moves against XLA's collectives, times by hand, the page's table."""

import dataclasses
import math
import re

import jax.numpy as jnp
import pytest

from benchmarks import scale as page
from tests.unit.cost.test_scale import B, compiled
from tests.unit.train.test_step import tiny
from vit_jax import models, trees
from vit_jax.cost import memory, scale
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType, Remat
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import estimate_effort, estimate_step, estimate_traffic


def collective_bytes(hlo: str) -> dict[str, int]:
    """Sum the bytes of the results of a compiled program's collectives, by operation.

    Args:
        hlo: `compiled.as_text()`, without loops (a loop's body counts once).
    """
    sizes = {"f32": 4, "s32": 4, "u32": 4, "bf16": 2, "f16": 2, "pred": 1, "u8": 1}
    kinds = r"all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    found: dict[str, int] = {}
    for result, kind in re.findall(rf"= (.*?) ({kinds})(?:-start)?\(", hlo):
        for dtype, dims in re.findall(r"(\w+)\[([\d,]*)\]", result):
            nbytes = sizes[dtype] * math.prod(int(dim) for dim in dims.split(",") if dim)
            found[kind] = found.get(kind, 0) + nbytes
    return found


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize(
    "mesh_config",
    [MeshConfig(data=8), MeshConfig(data=1, fsdp=8), MeshConfig(data=1, fsdp=4, tensor=2)],
    ids=["data", "fsdp", "fsdp-tensor"],
)
def test_the_compiled_step_moves_the_predicted_bytes(mesh_config: MeshConfig, dtype: DType) -> None:
    program, cfg, parts, mesh = compiled(mesh_config, dtype)
    found = collective_bytes(program.as_text())
    moved = estimate_traffic(cfg, parts, dict(mesh.shape))
    # XLA's CPU backend moves what is bfloat16 as float32; tests/aot holds TPUs and GPUs to it.
    widened = 4 / jnp.dtype(dtype.value).itemsize
    # On a CPU XLA sums a gradient whole where a TPU or GPU scatters it (reduce-scatter).
    reduced = moved.scatter + moved.reduce + moved.reduce_copies + widened * moved.tensor
    assert found.pop("all-gather", 0) == pytest.approx(widened * moved.gather, rel=0.02, abs=100)
    assert found.pop("all-reduce") == pytest.approx(reduced, rel=0.02)
    # Mixup's partners, the class token's gradient.
    assert sum(found.values()) < 0.02 * reduced
    held = program.memory_analysis().argument_size_in_bytes
    state = build_lib.abstract_state(parts, mesh)
    images = B // sharding.batch_shards(mesh) * (16 * 16 * 3 + 4)
    assert held == pytest.approx(memory.device_bytes(state) + images, rel=0.01)


def test_traffic_of_a_model_by_hand() -> None:
    params = models.abstract(models.variant("vit_mu8", num_classes=8))["params"]
    size = trees.num_bytes(params)
    alone = scale.traffic(params, {"data": 1, "fsdp": 1, "tensor": 1}, activation=8.0, num_sums=4)
    assert dataclasses.astuple(alone) == (0, 0, 0, 0, 0, 0)
    copies = scale.traffic(params, {"data": 4, "fsdp": 1, "tensor": 1})
    assert (copies.reduce_copies, copies.gather, copies.reduce) == (size, 0, 0)
    both = scale.traffic(params, {"data": 4, "fsdp": 8, "tensor": 1})
    assert both.scatter + both.reduce_copies == size
    assert both.reduce == both.scatter / 8
    assert scale.traffic(params, {"data": 1, "fsdp": 8, "tensor": 1}).reduce == 0


def test_weights_move_in_the_dtype_that_computes_and_gradients_in_their_own() -> None:
    params = models.abstract(models.variant("vit_mu8", num_classes=8))["params"]
    sizes = {"data": 4, "fsdp": 8, "tensor": 1}
    wide = scale.traffic(params, sizes)
    half = scale.traffic(params, sizes, compute_bytes=2)
    head = params["head"]["kernel"].size * 4 * 2  # computes in float32
    assert half.gather == (wide.gather - head) / 2 + head
    assert (half.scatter, half.reduce) == (wide.scatter, wide.reduce)
    narrow = scale.traffic(params, sizes, compute_bytes=2, reduce_bytes=2)
    assert (narrow.scatter, narrow.reduce) == (wide.scatter / 2, wide.reduce / 2)


def test_recomputed_blocks_sum_once_more_and_micro_batches_each() -> None:
    assert scale.tensor_sums(12, recomputed=False) == 48
    assert scale.tensor_sums(12, recomputed=True) == 60
    cfg = tiny(mesh=MeshConfig(data=2, fsdp=2, tensor=2))
    parts, sizes = build_lib.build(cfg, 1000), {"data": 2, "fsdp": 2, "tensor": 2}
    once = estimate_traffic(cfg, parts, sizes)
    cfg.model.remat = Remat.FULL
    assert estimate_traffic(cfg, parts, sizes).tensor == once.tensor * 5 / 4
    twice = dataclasses.replace(cfg, accum_steps=2)
    assert estimate_traffic(twice, parts, sizes).gather == 2 * once.gather
    assert estimate_traffic(twice, parts, sizes).tensor == once.tensor * 5 / 4


def test_a_runs_step_is_a_range_and_a_tiny_one_waits_for_launches() -> None:
    cfg = tiny(mesh=MeshConfig(data=1))
    parts = build_lib.build(cfg, 1000)
    alone, chip = {"data": 1, "fsdp": 1, "tensor": 1}, scale.CHIPS["H100"]
    least, most = estimate_step(cfg, parts, alone, chip).range
    assert most / least == pytest.approx(scale.SPREAD[1] / scale.SPREAD[0])
    launched = estimate_effort(cfg, parts, alone).work.calls * 361 / 78 * 5e-6
    assert least == pytest.approx(scale.SPREAD[0] * max(launched, 0.7e-3))
    # The matmuls of a large batch take their time, a third more where blocks are computed again.
    cfg = dataclasses.replace(cfg, data=dataclasses.replace(cfg.data, batch_size=10**7))
    parts = build_lib.build(cfg, 10**8)
    work = estimate_effort(cfg, parts, alone).work
    assert work.flops == build_lib.example_flops(parts) * 10**7
    once = estimate_step(cfg, parts, alone, chip).range[0]
    cfg.model.remat = Remat.FULL
    assert estimate_step(cfg, parts, alone, chip).range[0] == pytest.approx(once * 4 / 3, rel=0.01)


def test_the_pages_table_is_what_the_code_predicts() -> None:
    lines = page.PAGE.read_text().split(page.MARKS[0])[1].split(page.MARKS[1])[0].split("\n")
    assert sum(line.startswith("| vit_") for line in lines) == len(page.PLANS) * len(page.CHIPS)
    plan = page.PLANS[-1]
    written = [line.strip("| ").split(" | ") for line in lines if plan.name in line]
    assert written[-2:] == page.rows(plan, page.CHIPS[-2:])
