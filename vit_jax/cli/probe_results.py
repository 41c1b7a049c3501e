# SPDX-License-Identifier: Apache-2.0
"""Results of `probe` as a table, as JSON and as a picture."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax import data
from vit_jax.analysis.tables import align
from vit_jax.errors import UserError
from vit_jax.evals.features import FeatureSet
from vit_jax.evals.probes import Result
from vit_jax.visual.evaluation import draw_shots

_HEADER = ("of", "probe", "setting", "test top-1", "95 % interval", "over seeds")


def table(results: Sequence[Result]) -> list[str]:
    """Lay out a line a result; the temperature, which is everyone's, is in the JSON alone."""
    rows = []
    for result in results:
        setting = ", ".join(
            f"{key} {value:.4g}" for key, value in result.settings.items() if key != "temperature"
        )
        low, high = result.interval
        spread = result.deviation
        seeds = "" if spread is None else f"{len(result.top1)}, deviation {spread:.1%}"
        interval = f"{low:.1%} to {high:.1%}"
        rows.append([result.of, result.method, setting, f"{result.mean:.2%}", interval, seeds])
    return align(_HEADER, rows, right=(3,))


def to_json(train: FeatureSet, test: FeatureSet, results: Sequence[Result]) -> dict[str, Any]:
    """Write splits and results as JSON does."""
    return {
        "train": train.name,
        "test": test.name,
        "num_train": len(train.features),
        "num_test": len(test.features),
        "num_classes": train.num_classes,
        "num_features": train.features.shape[1],
        "results": [
            {
                "of": result.of,
                "method": result.method,
                **result.settings,
                "top1": result.mean,
                "top1_interval": list(result.interval),
                "top1_by_seed": list(result.top1),
            }
            for result in results
        ],
    }


def draw(results: Sequence[Result], train: FeatureSet, test: FeatureSet) -> bytes:
    """Draw the few-shot results against the shots, a line for each kind of features and l2."""
    found = [result for result in results if result.method == "fewshot"]
    several = len({result.settings["l2"] for result in found}) > 1
    curves: dict[str, list[tuple[int, float, float]]] = {}
    for result in sorted(found, key=lambda result: result.settings["shots"]):
        name = f"{result.of}, l2 {result.settings['l2']:g}" if several else result.of
        point = (int(result.settings["shots"]), result.mean, result.deviation or 0.0)
        curves.setdefault(name, []).append(point)
    return draw_shots(curves, len(test.labels), f"few-shot, {data.short_name(train.name)}")


def check_target(flag: str, file: Path, *, force: bool) -> None:
    """Refuse a file that `save` could or should not write.

    Raises:
        UserError: no such directory, none to write in, a file that is there already, or one whose
            name says that it is something else.
    """
    if not file.parent.is_dir():
        raise UserError(f"--{flag}={file}: {file.parent} is no directory; make it first")
    if file.is_dir() or (file.exists() and not force):
        raise UserError(f"{file} is there already; choose another name, or add --force")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise UserError(f"--{flag}={file}: {file.parent} may not be written to")
    suffix = {"out": ".json", "plot": ".png"}[flag]
    if file.suffix.lower() != suffix:
        raise UserError(f"--{flag}={file} must end in {suffix}, which is what is written")


def save(file: Path, content: bytes) -> None:
    """Write a file, which appears when it is complete.

    Raises:
        UserError: it cannot be written.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        temporary.write_bytes(content)
        temporary.replace(file)
    except OSError as error:
        raise UserError(f"cannot write {file}: {error.strerror}") from None
    print(f"wrote {file}")
