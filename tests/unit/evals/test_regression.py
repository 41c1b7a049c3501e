# SPDX-License-Identifier: Apache-2.0
"""Errors of numbers, equal to scikit-learn's."""

from pathlib import Path

import numpy as np

from vit_jax.evals import regression

GOLDEN = dict(np.load(Path(__file__).parents[2] / "golden/next3/metrics.npz"))
GUESS, TRUTH = GOLDEN["in_guess"], GOLDEN["in_value"]


def test_golden() -> None:
    found = regression.errors(GUESS, TRUTH)
    np.testing.assert_allclose(found["r2"], GOLDEN["out_r2"], rtol=1e-9)
    np.testing.assert_allclose(found["mae"], GOLDEN["out_mae"], rtol=1e-9)
    np.testing.assert_allclose(found["rmse"] ** 2, ((GUESS - TRUTH) ** 2).mean(0), rtol=1e-9)


def test_what_is_not_known_is_left_out() -> None:
    truth = TRUTH.copy()
    truth[:5, 1] = np.nan
    found = regression.summary(GUESS, truth, ("Mass [kg]", "age"))
    assert found["mae_mass_kg"] == regression.errors(GUESS, TRUTH)["mae"][0]
    assert found["r2_age"] == regression.errors(GUESS[5:], TRUTH[5:])["r2"][1]
    assert found["mae"] == (found["mae_mass_kg"] + found["mae_age"]) / 2
    assert set(regression.summary(GUESS[:, :1], truth[:, :1], ("x",))) == {"mae", "rmse", "r2"}
    assert "r2" not in regression.summary(GUESS[:1, :1], truth[:1, :1], ("x",))
    assert regression.slugs(("a b", "a-b", "?")) == ["0_a_b", "1_a_b", "2"]
