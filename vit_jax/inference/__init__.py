# SPDX-License-Identifier: Apache-2.0
"""A trained model and what one does with it: `load` it, `make_forward`, look at images."""

from vit_jax.inference.forward import make_forward, probabilities
from vit_jax.inference.input_line import describe_input
from vit_jax.inference.prediction import Prediction, predict
from vit_jax.inference.trained import Trained, changes, describe, load, read_weights
