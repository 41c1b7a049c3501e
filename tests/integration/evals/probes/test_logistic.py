# SPDX-License-Identifier: Apache-2.0
"""The logistic probe against scikit-learn's parts put together by hand."""

import dataclasses

import numpy as np

from tests.unit.evals.probes.test_fewshot import blobs
from vit_jax.evals.probes import logistic


def test_chooses_c_on_the_held_out_part_and_fits_all():
    train, test = blobs(90, 3, 12, 0, spread=4.0), blobs(200, 3, 12, 1, spread=4.0)
    held = logistic.held_out(train.labels, 3, seed=1)

    def score(exponent):
        part = logistic.fit(train.features[~held], train.labels[~held], 10**exponent)
        return logistic.quality(part, train.features[held], train.labels[held])

    best = logistic.search(score)
    (result,) = logistic.run(train, test, seed=1)
    assert result.settings == {"C": 10**best}
    whole = logistic.fit(train.features, train.labels, 10**best)
    assert result.top1 == (np.mean(whole.predict(test.features) == test.labels),)
    part = logistic.fit(train.features[~held], train.labels[~held], 10**best)
    assert result.top1 != (np.mean(part.predict(test.features) == test.labels),)
    # Neither end of the range does as well.
    assert score(best) > max(score(-6.0), score(6.0))


def test_classes_that_do_not_occur_are_never_guessed():
    train, test = blobs(60, 3, 5, 0), blobs(50, 3, 5, 1)
    shifted = [
        dataclasses.replace(x, labels=x.labels * 2, class_names="abcde") for x in (train, test)
    ]
    assert logistic.run(*shifted)[0].top1 == logistic.run(train, test)[0].top1
