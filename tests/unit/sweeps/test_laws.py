# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import numpy as np
import pytest

from tests.unit.sweeps import synthetic
from vit_jax.sweeps import laws as laws_lib
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps import results


def fit(place: Path) -> laws_lib.Laws:
    return laws_lib.fit(place, results.read(place, point_lib.read_manifest(place)))


def test_the_laws_that_runs_follow_are_found(tmp_path: Path) -> None:
    synthetic.sweep(tmp_path, synthetic.points(), noise=0.005)
    laws = fit(tmp_path)
    assert laws.refused == {}
    a = synthetic.BETA / (synthetic.ALPHA + synthetic.BETA)
    for law in (laws.joint, laws.isoflop):
        low, high = law.intervals["a"]
        assert low < a < high
        assert high - low < 0.1
    low, high = laws.joint.intervals["alpha"]
    assert low < synthetic.ALPHA < high
    # One run for each budget, the best one.
    assert len(laws.frontier) == 5
    assert [run.value for run in laws.frontier] == sorted(
        (r.value for r in laws.frontier), reverse=True
    )
    # At the best sizes E(C) = E + const C^-(alpha beta / (alpha + beta)).
    low, high = laws.compute.intervals["b"]
    assert low < synthetic.ALPHA * synthetic.BETA / (synthetic.ALPHA + synthetic.BETA) < high
    assert abs(laws.held_out.worst) < 0.1
    assert laws.to_json()["joint"]["alpha"] == laws.joint.alpha


def test_what_cannot_be_fitted_says_why(tmp_path: Path) -> None:
    made = synthetic.points()[:3]
    synthetic.sweep(tmp_path, made)
    laws = fit(tmp_path)
    assert (laws.compute, laws.joint, laws.isoflop, laws.held_out) == (None, None, None, None)
    assert {"compute", "joint", "isoflop"} <= set(laws.refused)
    assert "power law needs at least 4" in laws.refused["compute"]
    assert laws.to_json()["refused"] == laws.refused


def test_an_unfinished_run_is_no_point_of_a_law(tmp_path: Path) -> None:
    made = synthetic.points()
    synthetic.sweep(tmp_path, made)
    (made[3].workdir(tmp_path) / "finished.json").unlink()
    assert made[3].name not in [run.name for run in fit(tmp_path).runs]


def test_the_best_of_one_dimension_is_fitted_by_its_own_ray(tmp_path: Path) -> None:
    made, values = [], []
    rng = np.random.default_rng(0)
    rays = [("model.dim", (16, 24, 32, 48, 64, 96, 128)), ("model.depth", (2, 6))]
    for budget in np.geomspace(1e10, 1e13, 6):
        for field, sizes in rays:
            for size in sizes:
                shape = {"model.dim": 64, "model.depth": 4, "model.mlp_dim": 256, field: size}
                made.append(
                    synthetic.renamed(
                        synthetic.points()[0],
                        run=f"{len(made):04d}",
                        overrides={**shape, "duration": f"{budget} examples"},
                        params=size * 100,
                        flops=float(budget),
                    )
                )
                x = size / 50 if field == "model.dim" else 1.0
                error = 0.2 * x**-0.6 + 0.1 * x**0.5 * (budget / 1e11) ** -0.3 + 0.05
                other = 2.0 if field == "model.depth" else 1.0  # of another ray: not the width's
                values.append(other * error * np.exp(rng.normal(0, 0.002)))
    tmp_path.mkdir(exist_ok=True)
    point_lib.write_manifest(tmp_path, made)
    for point, value in zip(made, values, strict=True):
        synthetic.finish(tmp_path, point, float(value))
    laws = fit(tmp_path)
    assert set(laws.shapes) == {"model.dim"}
    assert "model.depth" in laws.refused  # three depths, and the middle one is the best
    low, high = laws.shapes["model.dim"].intervals["s"]
    assert low < 0.3 / (0.6 + 0.5) < high
    assert "model.mlp_dim" not in laws.refused  # it was not varied


@pytest.mark.parametrize("dimension", laws_lib.SHAPES)
def test_each_shape_is_a_field_of_a_vit(dimension: str) -> None:
    from vit_jax.models import ViTConfig

    assert hasattr(ViTConfig(), dimension.removeprefix("model."))
