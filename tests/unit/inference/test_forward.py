# SPDX-License-Identifier: Apache-2.0
"""Logits become what the loss that trained them makes of them."""

import numpy as np

from vit_jax.inference.forward import probabilities
from vit_jax.losses import Loss

LOGITS = np.array([[0.0, np.log(3.0)]], np.float32)


def test_softmax_is_of_one_class_and_sigmoid_of_each_alone() -> None:
    np.testing.assert_allclose(probabilities(LOGITS, Loss.SOFTMAX), [[0.25, 0.75]], rtol=1e-6)
    for loss in (Loss.SIGMOID, Loss.BCE):
        np.testing.assert_allclose(probabilities(LOGITS, loss), [[0.5, 0.75]], rtol=1e-6)
