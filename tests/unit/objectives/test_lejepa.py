# SPDX-License-Identifier: Apache-2.0
"""LeJEPA's loss against float64 numbers of its equations, its views, what it refuses."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from vit_jax import models, objectives
from vit_jax.data import Crop, DataConfig, TransformConfig
from vit_jax.objectives import LeJepa, LeJepaConfig
from vit_jax.objectives.lejepa import directions, disagreement, normality, sigreg

GOLDEN = Path(__file__).parents[2] / "golden" / "sigreg.npz"


def _objective(**fields: Any) -> LeJepa:
    small = {"num_classes": 0, "image_size": (16, 16), "patch": (4, 4), "dim": 16, "num_heads": 2}
    model = models.variant("vit_mu8", **small, dynamic_image_size=True)
    data = DataConfig(transform=TransformConfig(crop=Crop.RANDOM_RESIZED, area=(0.3, 1.0)))
    found = objectives.create(LeJepaConfig(**{"small_size": (8, 8), **fields}), model, data)
    assert isinstance(found, LeJepa)
    return found


def test_terms_are_those_of_float64() -> None:
    with np.load(GOLDEN) as file:
        golden = {name: np.float64(file[name]) for name in file.files}
    z, along = (jnp.asarray(golden[f"in_{name}"], jnp.float32) for name in ("z", "directions"))
    close = np.testing.assert_allclose
    close(normality(z, along), golden["out_statistics"], rtol=1e-5, atol=1e-6)
    value, gradient = jax.jit(jax.value_and_grad(sigreg))(z, along)
    close(value, golden["out_sigreg"], rtol=1e-5)
    close(gradient, golden["out_grad_sigreg"], rtol=1e-4, atol=1e-6)
    apart = disagreement(z, len(z))
    close(apart, golden["out_invariance"], rtol=1e-5)
    close(0.02 * value + 0.98 * apart, golden["out_lejepa"], rtol=1e-5)
    # Whatever the last of them are, the centre is of the first.
    far = z.at[1:].add(1.0)
    close(disagreement(far, 1), np.square(far[:1] - far).mean(), rtol=1e-5)
    # The paper's integral, from -5 to 5, is another by less than a hundredth.
    assert float(value) == pytest.approx(golden["out_sigreg_paper"], rel=0.01)


def test_a_collapse_costs_more_than_a_normal_spread() -> None:
    along = directions(jax.random.key(1), 8, 16)
    np.testing.assert_allclose(np.linalg.norm(along, axis=0), 1.0, rtol=1e-6)
    assert np.abs(along - directions(jax.random.key(2), 8, 16)).max() > 0.1
    normal = jax.random.normal(jax.random.key(0), (1, 64, 8))
    spread = {name: float(sigreg(x, along)) for name, x in _spreads(normal).items()}
    assert min(spread, key=spread.__getitem__) == "normal"
    assert spread["point"] > 10 * spread["normal"]


def _spreads(normal: jax.Array) -> dict[str, jax.Array]:
    return {"normal": normal, "point": 0 * normal, "wide": 3 * normal, "half": jnp.abs(normal)}


def test_views() -> None:
    views = _objective().views
    shapes = {name: view.shape for name, view in views.items()}
    assert shapes == {"large": (2, 16, 16, 3), "small": (6, 8, 8, 3)}
    assert [view.transform.area for view in views.values()] == [(0.3, 1.0), (0.05, 0.3)]
    (only,) = _objective(large_crops=4, small_crops=0).views.values()
    assert only.shape == (4, 16, 16, 3)


def test_refusals() -> None:
    objective = _objective()
    for fields, model, field in (
        ({"large_crops": 1, "small_crops": 0}, {}, "objective.large_crops"),
        ({}, {"dynamic_image_size": False}, "objective.small_crops"),
    ):
        given = models.with_fields(objective.model, model)
        with refused_by("objectives.lejepa.LeJepaConfig.check", field):
            LeJepaConfig(**{"small_size": (8, 8), **fields}).check(given, DataConfig())
    with refused_by("models.base.grid", "model.patch"):
        LeJepaConfig(small_size=(6, 6)).check(objective.model, DataConfig())
