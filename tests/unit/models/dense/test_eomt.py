# SPDX-License-Identifier: Apache-2.0
"""What EoMT's queries say together, and what hides patches from them."""

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.models.dense.eomt import Segments, _bias, _inside, class_scores
from vit_jax.models.resample import bilinear


def test_scores_of_classes_are_the_authors() -> None:
    rng = np.random.default_rng(0)
    classes, masks = (
        rng.normal(0, 2, shape).astype(np.float32) for shape in ((2, 3, 5), (2, 3, 4, 6))
    )
    found = class_scores(Segments(jnp.asarray(classes), jnp.asarray(masks)), (8, 12))
    # tue-mps/eomt: interpolate, then softmax(classes)[..., :-1] times sigmoid(masks).
    large = np.einsum("pi,bqij,rj->bqpr", bilinear(4, 8), masks, bilinear(6, 12))
    likely = np.asarray(jax.nn.softmax(classes, axis=-1))[..., :-1]
    wanted = np.einsum("bqhw,bqk->bkhw", 1 / (1 + np.exp(-large)), likely)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_queries_see_the_patches_of_their_masks_and_all_else_sees_all() -> None:
    masks = np.full((1, 2, 4, 4), -1.0, np.float32)
    masks[0, 0, :2] = 1  # the upper half
    seen = _inside(jnp.asarray(masks), (2, 2))
    np.testing.assert_array_equal(seen[0], [[True, True, False, False], [False] * 4])
    bias = np.asarray(_bias(seen, prefix=1))[0, 0]  # 2 queries, 1 token before 4 patches
    assert bias.shape == (7, 7)
    assert np.all(bias[:, :3] == 0)
    assert np.all(bias[2:] == 0)
    np.testing.assert_array_equal(bias[:2, 3:] == 0, np.asarray(seen[0]))
