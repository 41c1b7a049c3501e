# SPDX-License-Identifier: Apache-2.0
"""XLA's attention writes no float32 [B, h, N, N] array to a TPU's memory."""

import pytest

from tests.aot.programs import compile_gradient
from vit_jax import models
from vit_jax.cost import hlo
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType, Remat

_TOKENS = 197


@pytest.mark.parametrize("remat", [Remat.NONE, Remat.FULL])
def test_logits_are_in_float32_within_fusions_only(remat: Remat) -> None:
    cfg = models.variant(
        "vit_b16",
        dim=128,
        num_heads=2,
        mlp_dim=128,
        depth=2,
        scan_unroll=1,
        dtype=DType.BFLOAT16,
        remat=remat,
    )
    program = hlo.parse(compile_gradient(cfg, "v5e:2x2", MeshConfig(data=4), batch_size=32))
    run = [x for visit in hlo.schedules(program) for x in program.computations[visit.name]]
    square = [a for x in run for a in x.arrays if a.shape[-2:] == (_TOKENS, _TOKENS)]
    assert [str(a) for a in square if a.dtype == "f32"] == []
    assert {str(a) for a in square} == {"bf16[8,2,197,197]"}  # and none is kept of all blocks
