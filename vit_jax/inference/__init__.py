# SPDX-License-Identifier: Apache-2.0
"""A trained model and what one does with it: `load` it, `make_forward`, look at images."""

from vit_jax.inference.forward import make_forward, probabilities
from vit_jax.inference.prediction import Prediction, predict
from vit_jax.inference.trained import Trained, changes, describe, describe_input, load, read_weights
