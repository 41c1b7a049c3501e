# SPDX-License-Identifier: Apache-2.0
"""The dry run's memory and the cost model's bytes beside what compilers of TPUs and GPUs plan."""

import pytest

from benchmarks.memory import lowered
from tests.aot.programs import DIM, MLP, need
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost import collectives, compiler, hlo, memory, topology
from vit_jax.data import DataConfig
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType, Remat
from vit_jax.train.estimate import estimate_memory, estimate_traffic

# As many images as make activations, and not single operations, take the memory. Of TPUs whole
# steps are compared (tests/integration/test_compile_matrix.py): most of one so small lies in VMEM.
IMAGES = 32
CASES = [
    ("h100:8", MeshConfig(data=8), Remat.NONE),
    ("h100:8", MeshConfig(data=1, fsdp=8), Remat.FULL),
]


@pytest.mark.slow
@pytest.mark.parametrize("hardware, mesh_config, remat", CASES, ids=lambda x: str(x))
def test_plans_and_gathers_are_as_estimated(
    hardware: str, mesh_config: MeshConfig, remat: Remat
) -> None:
    need(hardware)
    top = topology.describe(hardware)
    size = {"dim": DIM, "num_heads": 8, "mlp_dim": MLP, "depth": 4, "scan_unroll": 1}
    cfg = Config(
        model=models.variant("vit_b16", dtype=DType.BFLOAT16, remat=remat, **size),
        data=DataConfig(batch_size=IMAGES * len(top.devices)),
        mesh=mesh_config,
        duration="10 steps",
    )
    with top.tracing():
        parts, mesh, step = lowered(cfg, top.devices)
        compiled = compiler.compile_lowered(step)
        estimated = estimate_memory(cfg, parts, mesh).device_total
    assert estimated == pytest.approx(memory.planned(compiled.program), rel=0.15)
    sizes = dict(mesh.shape)
    moved = estimate_traffic(cfg, parts, sizes)
    found = collectives.find(hlo.parse(compiled.program.as_text()), sizes)
    gathered = sum(x.num_bytes * x.times for x in found if x.kind == "all-gather")
    assert gathered == pytest.approx(moved.gather, rel=0.05, abs=1e5)
    kinds = ("all-reduce", "reduce-scatter")
    summed = sum(x.num_bytes * x.times for x in found if x.kind in kinds)
    expected = moved.scatter + moved.reduce + moved.reduce_copies
    assert summed == pytest.approx(expected, rel=0.05, abs=1e5)
