# SPDX-License-Identifier: Apache-2.0
"""Accuracy on corrupted images: every image is decoded once, and the forward compiled once."""

import concurrent.futures
import contextlib
import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from vit_jax import errors
from vit_jax.errors import UserError
from vit_jax.evals import corruptions
from vit_jax.evals.classify import Classify, Predict, Rows, Scores
from vit_jax.evals.passes import Pass

Variant = tuple[str, int]  # corruption, severity


def variants(names: Sequence[str], severities: Sequence[int]) -> list[Variant]:
    """Return the corruptions of some names, or "all", in some severities, () all of them.

    Raises UserError: an unknown corruption, or a severity that was not published.
    """
    names = corruptions.NAMES if "all" in names else tuple(dict.fromkeys(names))
    for name in names:
        if name not in corruptions.NAMES:
            raise errors.unknown("corruption", name, ["all", *corruptions.NAMES])
    wrong = [each for each in severities if not 1 <= each <= corruptions.NUM_SEVERITIES]
    if wrong:
        raise UserError(f"severity {wrong[0]} must be in 1..{corruptions.NUM_SEVERITIES}")
    severities = sorted(set(severities)) or range(1, corruptions.NUM_SEVERITIES + 1)
    return [(name, severity) for name in names for severity in severities]


def score(
    evaluation: Classify, predict: Predict, variables: Any, variants: Sequence[Variant]
) -> dict[Variant, Scores]:
    """Score the whole split once for each corruption and severity, after its transform.

    Differs from paper: ImageNet-C was saved as JPEG of quality 85 after each corruption.
    """
    by_variant: dict[Variant, list[Rows]] = {variant: [] for variant in variants}
    count = 0

    def take(rows: Rows) -> None:
        nonlocal count
        by_variant[variants[count % len(variants)]].append(rows)
        count += 1

    def corrupted(batch_size: int) -> Pass:
        # NumPy and OpenCV let other threads run while they work.
        pool = concurrent.futures.ThreadPoolExecutor(os.cpu_count(), "corrupt")
        with pool, contextlib.closing(evaluation.batches(batch_size)) as stream:
            for batch in stream:
                for name, severity in variants:
                    one = functools.partial(_corrupted, name, severity)
                    images = pool.map(one, batch["image"], batch["index"])
                    yield {**batch, "image": np.stack(list(images))}

    dataclasses.replace(evaluation, batches=corrupted).each_batch(predict, variables, take)
    return {variant: evaluation.join(found) for variant, found in by_variant.items()}


def _corrupted(name: str, severity: int, image: np.ndarray, index: Any) -> np.ndarray:
    # Padding has no index; it is thrown away later.
    return corruptions.corrupt(image, name, severity, int(index)) if index >= 0 else image
