# SPDX-License-Identifier: Apache-2.0
"""Masked patch prediction: ids by hand, shares of the corruption, and where the loss looks."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import Told, refused_as, refused_by
from vit_jax import models, objectives
from vit_jax.data import DataConfig
from vit_jax.objectives import Context, MaskedPatch, MaskedPatchConfig
from vit_jax.objectives.masked_patch import PatchTarget, color_ids, corruption

CONTEXT = Context(frozen={}, model_state={}, ema=None, objective=None, step=0)


def _model(**fields: Any) -> Any:
    small = {"num_classes": 0, "image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
    return models.variant("vit_mu8", **{**small, **fields})


def _objective(channels: int = 3, **fields: Any) -> MaskedPatch:
    cfg = MaskedPatchConfig(**fields)
    found = objectives.create(cfg, _model(channels=channels), DataConfig())
    assert isinstance(found, MaskedPatch)
    return found


def _batch(size: int = 4, channels: int = 3) -> dict[str, Any]:
    image = np.random.default_rng(0).integers(0, 256, (size, 16, 16, channels), np.uint8)
    return {"image": jnp.asarray(image)}


def test_ids_of_painted_patches() -> None:
    image = np.zeros((1, 4, 8, 3), np.uint8)
    image[0, :, :4] = (255, 0, 32)  # bins 7 (255 is 8 of 8), 0, and 32 of 255: floor(1.004)
    image[0, :2, 4:] = (31, 63, 64)  # floor(0.97), floor(1.98), floor(2.008)
    image[0, 2:, 4:] = (33, 65, 66)  # the means with the above are 32, 64 and 65
    ids = color_ids(jnp.asarray(image), (4, 4), 1)
    assert ids[0, :, 0].tolist() == [64 * 7 + 8 * 0 + 1, 64 * 1 + 8 * 2 + 2]


def test_ids_of_cells_run_along_the_rows() -> None:
    image = np.zeros((1, 8, 8, 1), np.uint8)
    image[0, :, :, 0] = 32 * np.add.outer(np.arange(8) // 2 * 0, np.arange(8) // 2)
    image[0, 2:4, 0:2] = 255
    cells = color_ids(jnp.asarray(image), (8, 8), 4)
    assert cells.shape == (1, 1, 16)
    expected = [0, 1, 2, 3, 7, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
    assert cells[0, 0].tolist() == expected


def test_a_mean_on_the_edge_of_a_bin() -> None:
    # (255 + 0) / 2 / 255 is exactly one half: bin 4.
    image = np.zeros((1, 2, 2, 1), np.uint8)
    image[0, 0] = 255
    assert color_ids(jnp.asarray(image), (2, 2), 1).tolist() == [[[4]]]


def test_shares_of_what_patches_become() -> None:
    images, total, size = 500, 100, 50
    keys = jax.random.split(jax.random.key(3), images)
    source, chosen = (np.asarray(x) for x in corruption(keys, total, size, 0.8, 0.1))
    own = np.arange(total)[None]
    at = np.take_along_axis(source, chosen, axis=1)
    assert all(len(set(row)) == size for row in chosen.tolist())
    untouched = np.ones_like(source, bool)
    np.put_along_axis(untouched, chosen, values=False, axis=1)
    assert (source == own)[untouched].all()
    count = images * size
    for found, share in (((at == total), 0.8), ((at != total) & (at != chosen), 0.1)):
        assert abs(found.sum() - share * count) < 3 * math.sqrt(count * share * (1 - share))
    # Every patch is corrupted as often as any other.
    times = np.bincount(chosen.ravel(), minlength=total)
    assert abs(times - images / 2).max() < 5 * math.sqrt(images / 4)
    assert at.min() >= 0
    assert len(np.unique(at[(at != total) & (at != chosen)])) == total


def test_training_draws_anew_at_each_step() -> None:
    objective = _objective()
    one, two = (objective.prepare(_batch(), jax.random.key(i)) for i in range(2))
    assert (np.asarray(one["source"]) != np.asarray(two["source"])).any()


def test_flops_count_the_head_and_the_backward_pass() -> None:
    objective = _objective()
    variables = {"params": jax.eval_shape(objective.init, jax.random.key(0))[0]}
    plain = objectives.Objective.flops(objective, variables)
    assert objective.flops(variables) == plain + 3 * 2 * 8 * 16 * 512


@pytest.mark.parametrize(
    ("fields", "model", "named"),
    [
        ({"masked": 0.8, "swapped": 0.3}, {}, "objective.masked=0.8 and objective.swapped=0.3"),
        ({"share": 0.01}, {}, ("objectives.hiding.counted", "objective.share")),
        ({"target": PatchTarget.GRID}, {"patch": (2, 2)}, "objective.target=grid"),
        ({}, {"token_merging": 2}, ("objectives.hiding.check", "model.token_merging")),
        ({}, {"mup_base_dim": 8}, ("objectives.hiding.check", "model.mup_base_dim")),
    ],
)
def test_refusals(fields: dict, model: dict, named: Told) -> None:
    with refused_as(named):
        MaskedPatchConfig(**fields).check(_model(**model), DataConfig())


def test_a_model_without_tokens_is_refused() -> None:
    with refused_by("objectives.hiding.check"):
        MaskedPatchConfig().check(models.variant("swin_t"), DataConfig())
