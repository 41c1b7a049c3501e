# SPDX-License-Identifier: Apache-2.0
"""Linear probe: multinomial logistic regression, its strength chosen within the training split.

As CLIP's (arXiv:2103.00020, appendix A.3): scikit-learn's L-BFGS of at most 1,000 iterations, and a
search over C, the inverse of the L2 strength, from 1e-6 to 1e6 that halves its step around the best
down to eight steps a decade. Differs from CLIP: features are brought to zero mean and unit
deviation, so that C means the same for every network; in double precision, without which L-BFGS
stops early; and of equal accuracies the C of the larger likelihood is taken, since the features of
a network trained on these images separate them all at almost any C.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from vit_jax.errors import UserError
from vit_jax.evals.probes.base import Score, blas_threads
from vit_jax.evals.probes.features import FeatureSet

_ITERATIONS = 1000
_DECADES = (-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0)  # of C
_FINEST = 1 / 8
_HELD_OUT = 5  # one in so many of each class


def run(train: FeatureSet, test: FeatureSet, *, seed: int = 0) -> list[Score]:
    """Choose C on a fifth of the training split, fit all of it, return test top-1.

    Raises UserError: no class has two images, so that there is nothing to choose C by.
    """
    held = held_out(train.labels, train.num_classes, seed)
    if not held.any():
        raise UserError(
            f"{train.name} has one image a class; logistic holds some out to choose C by: use more "
            "images, or drop it from --methods"
        )
    x, y = train.features[~held], train.labels[~held]
    x_held, y_held = train.features[held], train.labels[held]
    with blas_threads(train.features.size):
        decade = search(lambda exponent: quality(fit(x, y, 10**exponent), x_held, y_held))
        model = fit(train.features, train.labels, 10**decade)
        top1 = float(model.score(test.features, test.labels))
    notes = ()
    if int(model[-1].n_iter_.max()) >= _ITERATIONS:
        notes = (f"logistic was stopped after {_ITERATIONS:,} iterations, as CLIP's is",)
    return [Score("logistic", {"C": 10**decade}, (top1,), len(test.labels), notes=notes)]


def held_out(labels: Int[np.ndarray, " N"], num_classes: int, seed: int) -> np.ndarray:
    """Choose a fifth of each class, at least one image of a class that has two; [N] bool."""
    rng = np.random.default_rng(seed)
    held = np.zeros(len(labels), bool)
    for k in range(num_classes):
        indices = rng.permutation(np.flatnonzero(labels == k))
        count = max(len(indices) // _HELD_OUT, 1) if len(indices) > 1 else 0
        held[indices[:count]] = True
    return held


def quality(
    model: Any, x: Float[np.ndarray, "n D"], y: Int[np.ndarray, " n"]
) -> tuple[float, float]:
    """Return accuracy and mean log-likelihood, which ranks settings of equal accuracy."""
    of_class = model.predict_proba(x)[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    return float(model.score(x, y)), float(np.log(np.maximum(of_class, 1e-300)).mean())


def search(
    score: Callable[[float], tuple[float, ...]], starts: Sequence[float] = _DECADES
) -> float:
    """Return the exponent of the best score; of equal ones the smallest, the strongest L2."""
    scores = {exponent: score(exponent) for exponent in starts}

    def best() -> float:
        return max(sorted(scores), key=scores.__getitem__)

    step = (starts[1] - starts[0]) / 2
    while step >= _FINEST:
        centre = best()
        for exponent in (centre - step, centre + step):
            if starts[0] <= exponent <= starts[-1]:  # never a point that was asked before
                scores[exponent] = score(exponent)
        step /= 2
    return best()


def fit(x: Float[np.ndarray, "n D"], y: Int[np.ndarray, " n"], c: float) -> Any:
    """Fit scikit-learn's pipeline of standardisation and logistic regression."""
    # Late: scikit-learn takes a second.
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=_ITERATIONS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # reported in the notes
        return model.fit(x.astype(np.float64), y)
