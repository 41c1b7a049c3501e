# SPDX-License-Identifier: Apache-2.0
"""Training steps without labels, compiled for meshes of TPUs and GPUs."""

import pytest

from tests.aot.programs import compile_step
from vit_jax.cli.compile_for import undivided
from vit_jax.objectives import Balance, DinoConfig, HeadConfig, MaeConfig, ObjectiveConfig

HEAD = HeadConfig(prototypes=4096, hidden_dim=1024, bottleneck_dim=256)
OBJECTIVES: dict[str, ObjectiveConfig] = {
    "mae": MaeConfig(decoder_dim=512, decoder_depth=1, decoder_heads=8),
    "dinov2": DinoConfig(
        small_crops=2,
        small_size=(48, 48),
        head=HEAD,
        patch_head=HEAD,
        balance=Balance.SINKHORN,
        patch_weight=1.0,
        spread_weight=0.1,
        temperature_warmup="",
    ),
}


# One compiler each: the division is in the program that both are given.
@pytest.mark.slow
@pytest.mark.parametrize(
    "objective, hardware, shape",
    [("mae", "h100:8", (1, 8, 1)), ("dinov2", "v5e:2x4", (2, 2, 2))],
)
def test_it_compiles_with_its_heads_divided(
    objective: str, hardware: str, shape: tuple[int, int, int]
) -> None:
    seen = compile_step("vit", hardware, shape, objective=OBJECTIVES[objective])
    assert seen.compiled.num_rematerialized == 0
    state = seen.state
    for tree in (state.params, state.opt_state, state.ema):
        assert undivided(tree, "fsdp", dict(seen.mesh.shape))[0] == []
