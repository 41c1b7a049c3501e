# SPDX-License-Identifier: Apache-2.0
"""Few-shot probe: a regularised least-squares classifier on a few images a class.

The rule of the ViT paper (arXiv:2010.11929, section 4.1 and appendix D) as big_vision's
`fewshot_lsr` has it: features of the few images are brought to zero mean and unit deviation, a
constant feature takes the place of a bias, targets are 1 for the class and -1 for the others.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float, Int

from vit_jax.evals.probes.base import Score, blas_threads
from vit_jax.evals.probes.features import FeatureSet

L2 = 2.0**10  # big_vision's; it chooses none by the test images
_BIAS = 100.0  # so large a feature that its weight is hardly regularised
_DEVIATION = 1e-5
_ROWS = 8192  # of the test features at a time


def run(
    train: FeatureSet,
    test: FeatureSet,
    *,
    shots: Sequence[int],
    l2: Sequence[float] = (L2,),
    seeds: Sequence[int] = (0, 1, 2),
) -> list[Score]:
    """Return test top-1 for every number of shots and every l2, over the seeds.

    A class with fewer images than shots gives all that it has.
    """
    num_test = len(test.labels)
    hits: dict[tuple[int, float], list[float]] = {(n, v): [] for n in shots for v in l2}
    for seed in seeds:
        order = class_order(train.labels, train.num_classes, seed)
        for n in shots:
            chosen = np.concatenate([indices[:n] for indices in order])
            x, y = train.features[chosen], train.labels[chosen]
            for value in l2:
                with blas_threads(x.size):
                    score = fit(x, y, train.num_classes, value)
                    blocks = [test.features[i : i + _ROWS] for i in range(0, num_test, _ROWS)]
                    guesses = np.concatenate([score(block).argmax(axis=1) for block in blocks])
                hits[n, value].append(float((guesses == test.labels).mean()))
    counts = np.bincount(train.labels, minlength=train.num_classes)

    def notes(n: int) -> tuple[str, ...]:
        few = int((counts < n).sum())
        line = f"{n} shots: {few} of {len(counts)} classes have fewer images, and give all"
        return (line,) if few else ()

    return [
        Score("fewshot", {"shots": n, "l2": value}, tuple(top1), num_test, notes=notes(n))
        for (n, value), top1 in hits.items()
    ]


def class_order(
    labels: Int[np.ndarray, " N"], num_classes: int, seed: int
) -> list[Int[np.ndarray, " n"]]:
    """Return the examples of each class in the order in which the shots are taken from them.

    One generator shuffles class after class, so the images are big_vision's for the same seed.
    """
    rng = np.random.default_rng(seed)
    return [rng.permutation(np.flatnonzero(labels == k)) for k in range(num_classes)]


def fit(
    x: Float[np.ndarray, "n D"], y: Int[np.ndarray, " n"], num_classes: int, l2: float
) -> Callable[[Float[np.ndarray, "M D"]], Float[np.ndarray, "M K"]]:
    """Fit the few images; returns what scores the classes of others.

    The solution has two forms, w = (A'A + l2 I)^-1 A'Y = A' (AA' + l2 I)^-1 Y; the one with the
    smaller system is solved. Differs from big_vision: in double precision.
    """
    x = x.astype(np.float64)
    mean, deviation = x.mean(axis=0), x.std(axis=0) + _DEVIATION

    def design(features: np.ndarray) -> np.ndarray:
        white = (features - mean) / deviation
        return np.pad(white, ((0, 0), (0, 1)), constant_values=_BIAS)

    a = design(x)
    targets = 2.0 * np.eye(num_classes)[y] - 1.0
    if a.shape[0] >= a.shape[1]:
        weights = np.linalg.solve(a.T @ a + l2 * np.eye(a.shape[1]), a.T @ targets)
    else:
        weights = a.T @ np.linalg.solve(a @ a.T + l2 * np.eye(a.shape[0]), targets)
    return lambda features: design(features) @ weights
