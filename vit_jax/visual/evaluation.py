# SPDX-License-Identifier: Apache-2.0
"""Pictures of an evaluation: calibration, sizes, corruptions, numbers of shots."""

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax.evals import Classify, corruptions
from vit_jax.evals.calibration import Bin, expected_error
from vit_jax.evals.corruptions import Variant
from vit_jax.figures import plots as figures
from vit_jax.figures.contact_sheet import Tile, render
from vit_jax.figures.plots import COLOURS, MARKERS


def draw_reliability(bins: Sequence[Bin], title: str) -> bytes:
    """Draw accuracy against confidence, and how many guesses there are of each, as PNG."""
    shape = {"rows": 2, "sharex": True, "height_ratios": (3, 1)}
    figure, (upper, lower) = figures.panels((5.0, 5.6), **shape)
    low = [each.low for each in bins]
    width = bins[0].high - bins[0].low
    seen = [each for each in bins if each.count]
    bar = {"width": width, "align": "edge", "edgecolor": "white", "linewidth": 0.6}
    upper.bar(low, [each.accuracy for each in bins], color=COLOURS[0], label="accuracy", **bar)
    upper.plot(
        [0, 1], [0, 1], color="0.5", linestyle="--", linewidth=1, label="accuracy = confidence"
    )
    points = [each.confidence for each in seen], [each.accuracy for each in seen]
    dots = {"color": COLOURS[1], "marker": "o", "markersize": 6, "linewidth": 0}
    dots |= {"markeredgecolor": "white", "markeredgewidth": 1}
    upper.plot(*points, label="at the mean confidence", **dots)
    upper.set(xlim=(0, 1), ylim=(0, 1.02), ylabel="accuracy")
    lower.bar(low, [each.count for each in bins], color="0.6", **bar)
    lower.set(xlabel="confidence of the first guess", ylabel="images", yscale="log")
    lower.set_ylim(bottom=0.7)
    figures.log_ticks(lower.yaxis, *lower.get_ylim())
    total = sum(each.count for each in bins)
    heading = f"{title}\nECE {expected_error(list(bins)):.2%}, {total:,} images"
    # Between the panels, where no bar is.
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.02), "ncols": 3, "fontsize": 7}
    return figures.finish(figure, upper, heading, **below)


def draw_sizes(
    rows: Sequence[tuple[int, float, float, float]], native: int | None, title: str
) -> bytes:
    """Draw top-1 against the side of the input as PNG.

    `rows` are (pixels, top-1, and the ends of its 95 % interval), ascending in size; `native` is
    the size of training.
    """
    figure, (axes,) = figures.panels((5.6, 3.8))
    sizes, top1, low, high = (np.array(column, float) for column in zip(*rows, strict=True))
    axes.fill_between(sizes, 100 * low, 100 * high, color=COLOURS[0], alpha=0.15, linewidth=0)
    line = {"color": COLOURS[0], "marker": "o", "markersize": 4, "linewidth": 2}
    axes.plot(sizes, 100 * top1, label="top-1, with its 95 % interval", **line)
    apart = len(sizes) < 2 or np.diff(sizes).min() >= 0.04 * np.ptp(sizes)
    for size, value in zip(sizes, top1, strict=True) if apart else ():
        place = {"xytext": (0, 9), "textcoords": "offset points", "ha": "center", "fontsize": 8}
        frame = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none"}
        axes.annotate(f"{100 * value:.1f}", (size, 100 * value), bbox=frame, zorder=3, **place)
    if native is not None:
        axes.axvline(native, color="0.5", linestyle="--", linewidth=1, label="size of training")
    if apart:
        axes.set_xticks(sizes)
    axes.set(xlabel="side of the input (pixels)", ylabel="top-1 accuracy (%)")
    axes.margins(y=0.12)
    return figures.finish(figure, axes, title)


def draw_corruptions(table: Mapping[str, Mapping[int, float]], clean: float, title: str) -> bytes:
    """Draw top-1 against severity, a line for each corruption, from clean at 0, as PNG."""
    figure, (axes,) = figures.panels((7.0, 4.2))
    for i, (name, values) in enumerate(table.items()):
        style = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "linewidth": 1.6}
        colour, line = COLOURS[i % len(COLOURS)], "-" if i < len(COLOURS) else "--"
        top1 = [100 * value for value in (clean, *values.values())]
        axes.plot([0, *values], top1, line, color=colour, label=name.replace("_", " "), **style)
    severities = list(next(iter(table.values())))
    axes.set_xticks([0, *severities], ["clean", *map(str, severities)])
    axes.set(xlabel="severity", ylabel="top-1 accuracy (%)", ylim=(0, 102))
    return figures.finish(figure, axes, title, loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_shots(
    curves: Mapping[str, Sequence[tuple[int, float, float]]], num_test: int, title: str
) -> bytes:
    """Draw top-1 of `num_test` images against the number of images a class as PNG.

    `curves` are (shots, mean top-1, deviation over the seeds) by name.
    """
    figure, (axes,) = figures.panels((5.6, 3.8))
    shots: set[int] = set()
    for i, (name, points) in enumerate(curves.items()):
        x, mean, deviation = (np.array(column) for column in zip(*points, strict=True))
        colour = COLOURS[i % len(COLOURS)]
        band = (100 * np.maximum(mean - deviation, 0), 100 * np.minimum(mean + deviation, 1))
        axes.fill_between(x, *band, color=colour, alpha=0.15, linewidth=0)
        label = f"{name}  {mean[-1]:.1%} at {x[-1]}"
        style = {"marker": MARKERS[i % len(MARKERS)], "markersize": 4, "linewidth": 2}
        axes.plot(x, 100 * mean, color=colour, label=label, **style)
        shots |= set(x.tolist())
    axes.set_xscale("log")
    axes.set_xticks(sorted(shots), [str(n) for n in sorted(shots)])
    axes.minorticks_off()
    axes.set(xlabel="labelled images a class", ylabel=f"top-1 accuracy (%), {num_test:,} images")
    return figures.finish(figure, axes, title)


def corrupted_sheet(evaluation: Classify, variants: Sequence[Variant]) -> bytes:
    """Draw the first image under each corruption (a row) and severity (a tile) as a PNG."""
    with contextlib.closing(evaluation.batches(evaluation.batch_size)) as stream:
        batch = next(iter(stream))
    image, index = batch["image"][0], int(batch["index"][0])
    rows = {name: [Tile(image, name.replace("_", " "))] for name, _ in variants}
    for name, severity in variants:
        made = corruptions.corrupt(image, name, severity, index)
        strength = str(corruptions.strength(name, severity, image.shape[:2])).strip("()")
        rows[name].append(Tile(made, f"{severity}: {strength}"))
    title = f"severities of {corruptions.benchmark(image.shape[:2])}; the image itself to the left"
    return render(list(rows.values()), title)
