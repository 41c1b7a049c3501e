# SPDX-License-Identifier: Apache-2.0
"""Evaluations of a trained model over a split, each example counted once."""

from vit_jax.evals.classify import (
    Classify,
    Evaluator,
    Predict,
    Scores,
    make_evaluator,
    open_split,
)
from vit_jax.evals.config import EvalConfig, validate

__all__ = [
    "Classify",
    "EvalConfig",
    "Evaluator",
    "Predict",
    "Scores",
    "make_evaluator",
    "open_split",
    "validate",
]
