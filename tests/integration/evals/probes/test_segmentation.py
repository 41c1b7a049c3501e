# SPDX-License-Identifier: Apache-2.0
"""The linear head on patches that a line separates."""

import numpy as np

from vit_jax.evals.probes import segmentation


def test_a_head_learns_what_a_line_separates() -> None:
    rng = np.random.default_rng(0)
    classes = rng.integers(0, 2, (8, 2, 2))
    # Mean and scale differ from 0 and 1; BatchNorm takes that away.
    tokens = 30 + 5 * rng.normal(size=(8, 2, 2, 3)).astype(np.float32)
    tokens[..., 0] += 40 * classes
    masks = classes.repeat(2, axis=1).repeat(2, axis=2).astype(np.uint8)
    masks[:, 0] = 255
    head = segmentation.fit(tokens, masks, 2, steps=60, lr=0.05)
    assert np.array_equal(head.scores(tokens).argmax(axis=-1), classes)
    wrong = segmentation.fit(tokens, np.where(masks == 255, 255, 1 - masks), 2, steps=60, lr=0.05)
    assert np.array_equal(wrong.scores(tokens).argmax(axis=-1), 1 - classes)
