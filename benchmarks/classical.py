# SPDX-License-Identifier: Apache-2.0
"""scikit-learn's classifiers on the digits' pixels, and what others published of the same scans."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Split(NamedTuple):
    """A part of the 1,797 scans to train on and one to test on, both in the published order.

    Attributes:
        name: what tables call it.
        train, test: rows of `sklearn.datasets.load_digits`.
        train_split, test_split: the same scans in this project's dataset.
    """

    name: str
    train: slice
    test: slice
    train_split: str
    test_split: str


_LAST = slice(1437, 1797)  # by writers who are not in the rest
WRITERS = Split("first 1,437, last 360", slice(1437), _LAST, "train", "test")
TENTH = Split("first 144, last 360", slice(144), _LAST, "train[:144]", "test")
NINE_TENTHS = Split(
    *("first 1,617, last 180", slice(1617), slice(1617, 1797)),
    *("train+test[:180]", "test[180:]"),
)
HALVES = Split(
    *("first 898, last 899", slice(898), slice(898, 1797)), *("train[:898]", "train[898:]+test")
)

SVM = "SVM, RBF, C=10, gamma=0.001"
SVM_EXAMPLE = "SVM, RBF, C=1, gamma=0.001"
LOGISTIC, FOREST = "logistic regression", "random forest, 500 trees"


def _svm(c: float) -> Any:
    from sklearn.svm import SVC

    return SVC(C=c, gamma=0.001)  # pyright: ignore[reportArgumentType]


def _knn(k: int) -> Any:
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(k)


def _logistic(_: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    return make_pipeline(FunctionTransformer(_to_unit), LogisticRegression(max_iter=2000))


def _to_unit(pixels: np.ndarray) -> np.ndarray:
    return pixels / 16  # ink is counted 0..16


def _forest(seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(500, random_state=seed)


# By name: a classifier for a seed, which only the forest heeds.
METHODS: Mapping[str, Callable[[int], Any]] = {
    SVM: lambda _: _svm(10.0),
    SVM_EXAMPLE: lambda _: _svm(1.0),
    "kNN, k=3": lambda _: _knn(3),
    "kNN, k=5": lambda _: _knn(5),
    LOGISTIC: _logistic,
    FOREST: _forest,
}
# Those that the tables with our ViT have.
SHOWN = (SVM, "kNN, k=3", LOGISTIC, FOREST)

_EXAMPLES = "scikit-learn.org/stable/auto_examples"


class Published(NamedTuple):
    """Somebody else's test top-1 in per cent; `split` is ours where it is one of them."""

    method: str
    split: Split | str
    top1: str
    source: str


PUBLISHED = (
    Published(
        "kNN, k=1",
        "UCI's 3,823 by 30 other writers, all 1,797",
        "98.0",
        "UCI's optdigits.names; k=3 97.8",
    ),
    Published(
        SVM_EXAMPLE, HALVES, "97", f"{_EXAMPLES}/classification/plot_digits_classification.html"
    ),
    Published(
        "kNN, k=5",
        NINE_TENTHS,
        "96.1",
        f"{_EXAMPLES}/exercises/plot_digits_classification_exercise.html",
    ),
    Published(LOGISTIC, NINE_TENTHS, "93.3", "the same page"),
)


def top1(method: str, split: Split, seed: int = 0) -> tuple[float, float]:
    """Fit a method on a split; returns its share of right guesses and the seconds it took."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    start = time.perf_counter()
    model = METHODS[method](seed).fit(pixels[split.train], labels[split.train])
    share = float(model.score(pixels[split.test], labels[split.test]))
    return share, time.perf_counter() - start


def shuffled(method: str) -> tuple[float, ...]:
    """Return a method's top-1 on each random fifth of the scans, trained on the other four."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import KFold, cross_val_score

    pixels, labels = load_digits(return_X_y=True)
    folds = KFold(5, shuffle=True, random_state=0)
    return tuple(map(float, cross_val_score(METHODS[method](0), pixels, labels, cv=folds)))
