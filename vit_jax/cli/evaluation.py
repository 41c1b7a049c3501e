# SPDX-License-Identifier: Apache-2.0
"""What `evaluate` does: measures, prints tables, writes files."""

import contextlib
import csv
import dataclasses
import io
import json
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import Mesh

from vit_jax import sharding, trees
from vit_jax.cli.meter import watched
from vit_jax.data import short_name
from vit_jax.errors import UserError
from vit_jax.evals import Classify, Predict, Scores, calibration, corruptions, robustness
from vit_jax.evals.intervals import wilson
from vit_jax.inference.evaluate import (
    Target,
    check_sizes,
    make_evaluator,
    make_predict,
    native_size,
    open_target,
    placed,
    resized,
)
from vit_jax.inference.trained import Trained, changes, read_weights
from vit_jax.losses import Loss
from vit_jax.sharding import MeshConfig
from vit_jax.visual import evaluation as pictures

Rows = list[Sequence[Any]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """What to measure.

    Attributes:
        dataset, split, data_dir, batch_size, own_transform: as in `open_target`.
        mesh: of the devices.
        sizes: of the input, besides the model's own.
        corruptions: names, or "all".
        severities: of the corruptions; () is all.
        out: where files go; None writes none.
    """

    dataset: str = ""
    split: str = ""
    data_dir: str = ""
    batch_size: int = 0
    own_transform: bool = True
    mesh: MeshConfig = dataclasses.field(default_factory=MeshConfig)
    sizes: tuple[int, ...] = ()
    corruptions: tuple[str, ...] = ()
    severities: tuple[int, ...] = ()
    out: Path | None = None


def evaluate(found: Trained, request: Request) -> dict[str, Any]:
    """Measure what is asked for, print it, write it; returns what metrics.json holds.

    Args:
        found: the model, its weights not yet read.
        request: what to measure.

    Raises:
        UserError: whatever cannot be, before the first image is read where that can be known.
    """
    target = open_target(
        found,
        dataset=request.dataset,
        split=request.split,
        data_dir=request.data_dir,
        batch_size=request.batch_size,
        own_transform=request.own_transform,
    )
    if request.sizes:
        check_sizes(found, target.evaluation.transform, request.sizes)
    names = corruptions.NAMES if "all" in request.corruptions else request.corruptions
    severities = request.severities or tuple(range(1, corruptions.NUM_SEVERITIES + 1))
    robustness.check(names, severities)
    mesh = sharding.make_mesh(request.mesh)
    writer = _Writer(request.out if jax.process_index() == 0 else None)
    trained = read_weights(found)
    measuring = _Measuring(
        trained=trained,
        target=target,
        mesh=mesh,
        predict=make_predict(trained),
        variables=placed(trained, mesh),
        evaluation=make_evaluator(trained, target, mesh),
        writer=writer,
    )
    scores, measured = _measure(measuring)
    if request.sizes:
        measured["sizes"] = _sweep(measuring, request.sizes, scores)
    if names:
        variants = [(name, severity) for name in names for severity in severities]
        measured["corruptions"] = _corrupt(measuring, variants, measured["top1"])
    writer.write("metrics.json", json.dumps(trees.finite(measured), indent=1) + "\n")
    if writer.written:
        print(f"\nwrote {', '.join(writer.written)} in {writer.folder}")
    return measured


_SIZE_COLUMNS = ("size", "top1", "top1_low", "top1_high", "top5", "loss")


class _Writer:
    """Writes files into a folder that is made at once; into none it writes nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self.written: list[str] = []
        if folder is not None:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryFile(dir=folder):  # now, not after hours
                    pass

    def write(self, name: str, content: str | bytes) -> None:
        if self.folder is not None:
            data = content if isinstance(content, bytes) else content.encode()
            with _writing(self.folder):
                (self.folder / name).write_bytes(data)
            self.written.append(name)


@contextlib.contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--out={folder}: {error.strerror or error}") from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Measuring:
    """A trained model at its own size, ready to be measured."""

    trained: Trained
    target: Target
    mesh: Mesh
    predict: Predict
    variables: Any
    evaluation: Classify
    writer: _Writer


def _watch(evaluation: Classify, what: str, total: int, *, times: int = 1) -> Classify:
    if jax.process_index():
        return evaluation
    share = int(total * sharding.own_share(evaluation.mesh))  # what this process reads of it
    batches = watched(evaluation.batches, max(share, 1), what, times=times)
    return dataclasses.replace(evaluation, batches=batches)


def _measure(measuring: _Measuring) -> tuple[Scores, dict[str, Any]]:
    trained, source, writer = measuring.trained, measuring.target.source, measuring.writer
    watch = _watch(measuring.evaluation, "evaluating", len(source))
    scores = watch.scores(measuring.predict, measuring.variables)
    summary, count = scores.summary(), len(scores.top1)
    bins = calibration.reliability(scores.confidence, scores.top1)
    low, high = wilson(int(scores.top1.sum()), count)
    measured = {
        "from": trained.ref,
        "step": trained.step,
        "ema": trained.ema,
        "changes": changes(trained),
        "dataset": source.name,
        "image_size": list(trained.image_size),
        "num_examples": count,
        "unlabelled": len(source) - count,
        "top1": summary["top1"],
        "top1_interval": [low, high],
        "top5": summary["top5"],
        "loss": summary["loss"],
        "ece": calibration.expected_error(bins),
        "confidence": float(scores.confidence.mean(dtype="float64")),
    }
    step = "" if trained.step is None else f", step {trained.step:,}"
    without = len(source) - count
    left_out = f" ({without:,} more have no label and are left out)" if without else ""
    alone = "" if trained.loss is Loss.SOFTMAX else ", of its class alone (sigmoid)"
    changed = f", with {', '.join(changes(trained))}" if changes(trained) else ""
    _say(f"{trained.ref}{step}{', moving average' if trained.ema else ''}{changed}")
    _say(f"{source.name}: {count:,} images{left_out}\n")
    _show(
        [
            ("metric", "value", ""),
            ("top1", f"{summary['top1']:.2%}", f"95 % interval {low:.2%} to {high:.2%}"),
            ("top5", f"{summary['top5']:.2%}", ""),
            ("loss", f"{summary['loss']:.4f}", f"{trained.loss}, nats per image"),
            ("ece", f"{measured['ece']:.2%}", f"calibration error, {calibration.NUM_BINS} bins"),
            ("confidence", f"{measured['confidence']:.2%}", f"mean of the first guess{alone}"),
        ]
    )
    if writer.folder is not None:
        with _writing(writer.folder):
            writer.written += measuring.evaluation.report(scores, writer.folder)
        writer.write("reliability.png", pictures.draw_reliability(bins, short_name(source.name)))
    return scores, measured


def _sweep(
    measuring: _Measuring, sizes: Sequence[int], at_own: Scores
) -> list[dict[str, int | float]]:
    trained, target, mesh = measuring.trained, measuring.target, measuring.mesh
    native, rows = native_size(trained)[0], []
    height, width = trained.image_size
    wanted: list[int] = [*sizes, native, *([height] if height == width else [])]
    for size in sorted(set(wanted)):
        scores = at_own
        if (size, size) != trained.image_size:
            other = resized(trained, size)
            evaluation = make_evaluator(other, target, mesh)
            watch = _watch(evaluation, f"at {size}x{size}", len(target.source))
            scores = watch.scores(make_predict(other), placed(other, mesh))
        low, high = wilson(int(scores.top1.sum()), len(scores.top1))
        summary = scores.summary()
        rows.append((size, summary["top1"], low, high, summary["top5"], summary["loss"]))
    _say(f"\nby size of the input; training was at {native}x{native}")
    _show([_SIZE_COLUMNS, *rows])
    measuring.writer.write("sizes.csv", _csv([_SIZE_COLUMNS, *rows]))
    title = short_name(target.source.name)
    picture = pictures.draw_sizes([row[:4] for row in rows], native, title)
    measuring.writer.write("sizes.png", picture)
    return [dict(zip(_SIZE_COLUMNS, row, strict=True)) for row in rows]


def _corrupt(
    measuring: _Measuring, variants: Sequence[robustness.Variant], clean: float
) -> dict[str, Any]:
    source, writer = measuring.target.source, measuring.writer
    found = robustness.score(
        _watch(measuring.evaluation, "corrupted images", len(source), times=len(variants)),
        measuring.predict,
        measuring.variables,
        variants,
    )
    table: dict[str, dict[int, float]] = {}
    for (name, severity), scores in found.items():
        table.setdefault(name, {})[severity] = scores.summary()["top1"]
    severities = list(next(iter(table.values())))
    means = {each: _mean(row[each] for row in table.values()) for each in severities}
    rows: Rows = [
        ("top1", *(f"severity {each}" for each in severities), "mean"),
        *((name, *row.values(), _mean(row.values())) for name, row in table.items()),
        ("mean", *means.values(), _mean(means.values())),
        ("clean", *[clean] * len(means), clean),
    ]
    benchmark = corruptions.benchmark(measuring.trained.image_size)
    _say(f"\nunder corruption, severities of {benchmark}")
    _show(rows)
    writer.write("corruptions.csv", _csv(rows))
    picture = pictures.draw_corruptions(table, clean, short_name(source.name))
    writer.write("corruptions.png", picture)
    if writer.folder is not None:
        writer.write("corrupted.png", pictures.corrupted_sheet(measuring.evaluation, variants))
    return {
        "severities_of": benchmark,
        "mean_top1": _mean(means.values()),
        "top1": {name: {str(k): value for k, value in row.items()} for name, row in table.items()},
    }


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return math.fsum(numbers) / len(numbers)


def _say(text: str) -> None:
    if jax.process_index() == 0:
        print(text)


def _show(rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: the first column to the left, the others to the right where numbers."""
    cells = [[f"{x:.4f}" if isinstance(x, float) else str(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *others = (
            cell.ljust(width) if i == 0 or len(cell) > 12 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        _say("  ".join([first, *others]).rstrip())


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(
        [f"{x:.6f}" if isinstance(x, float) else x for x in row] for row in rows
    )
    return file.getvalue()
