# SPDX-License-Identifier: Apache-2.0
"""BatchNorm: its formulas, its running statistics, the same ones on every layout."""

import numpy as np

from tests.unit.models.layers.test_batch_norm import draw, train, variables


def test_training_normalises_by_the_batch_and_moves_the_running_statistics() -> None:
    before, x = variables(), draw()
    y, after = train(before, x)
    wide = x.astype(np.float64)
    mean, biased = wide.mean(axis=(0, 1, 2)), wide.var(axis=(0, 1, 2))
    params, old = before["params"], before["batch_stats"]
    expected = (wide - mean) / np.sqrt(biased + 1e-5) * params["scale"] + params["bias"]
    np.testing.assert_allclose(y, expected, atol=5e-6)
    # A tenth of the batch's; the variance divided by n - 1.
    np.testing.assert_allclose(after["mean"], 0.9 * old["mean"] + 0.1 * mean, rtol=1e-6)
    unbiased = wide.var(axis=(0, 1, 2), ddof=1)
    np.testing.assert_allclose(after["var"], 0.9 * old["var"] + 0.1 * unbiased, rtol=1e-6)
