# SPDX-License-Identifier: Apache-2.0
"""EoMT's annealing against its authors' formula, by the steps of a run."""

import jax.numpy as jnp
import numpy as np

from tests.refusals import refused_by
from vit_jax.objectives import EomtConfig
from vit_jax.objectives.dense.eomt import annealing, shares
from vit_jax.settings.durations import Clock


def clock(total: int) -> Clock:
    return Clock(batch_size=16, num_examples=20_210, total_steps=total)


def theirs(step: int, first: int, last: int) -> float:
    """tue-mps/eomt training/lightning_module.py, mask_annealing."""
    if step < first:
        return 1.0
    return 0.0 if step >= last else (1 - (step - first) / (last - first)) ** 0.9


def test_by_default_each_block_has_a_sixth_of_the_run() -> None:
    # COCO's config has 14782 = 88692 / 6.
    pairs = [(14782, 29564), (29564, 44346), (44346, 59128), (59128, 73910)]
    cfg = EomtConfig(num_classes=3)
    assert annealing(cfg, clock(88_692)) == pairs
    for step in (0, 14781, 14782, 20000, 44346, 60000, 73910, 88692):
        found = shares(cfg, clock(88_692), jnp.int32(step))
        np.testing.assert_allclose(found, [theirs(step, *pair) for pair in pairs], rtol=1e-5)


def test_times_may_be_given() -> None:
    starts, ends = ("", "6520 steps"), ("3000 steps", "9780 steps")
    cfg = EomtConfig(num_classes=3, blocks=2, anneal_start=starts, anneal_end=ends)
    found = shares(cfg, clock(20_192), jnp.int32(1500))
    np.testing.assert_allclose(found, [theirs(1500, 0, 3000), 1.0], rtol=1e-5)
    backwards = EomtConfig(num_classes=3, blocks=1, anneal_start=("10%",), anneal_end=("5%",))
    with refused_by("objectives.dense.eomt.annealing", "objective.anneal_end"):
        annealing(backwards, clock(100))
