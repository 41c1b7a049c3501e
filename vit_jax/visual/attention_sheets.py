# SPDX-License-Identifier: Apache-2.0
"""Where a trained model looks in images, as contact sheets: `visualize --attention`."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Num, UInt8

from vit_jax.errors import UserError, shown
from vit_jax.figures import plots as figures
from vit_jax.figures.contact_sheet import Tile, colors, overlay, render, spaced, spread, write
from vit_jax.inference import Trained, probabilities
from vit_jax.inference.views import picture
from vit_jax.visual.attention import HeadMaps, head_maps
from vit_jax.visual.saliency import extra_rollout, make_inspection, method

_SIDE = 320  # to which small images are enlarged before a map lies over them
_LAYERS, _HEADS, _CLASSES = 4, 6, 3
_EDGE = (0, 220, 255)
_LEGEND = np.full((_SIDE // 8, _SIDE, 3), 128, np.uint8)  # a grey image, for the colours to lie on


class Choice(NamedTuple):
    """The layers and heads to draw: numbers, "all", or "" for some, evenly spaced."""

    layers: tuple[int, ...] | str = ""
    heads: tuple[int, ...] | str = ""


def write_sheets(
    trained: Trained,
    images: Iterable[tuple[str, Num[np.ndarray, "H W C"]]],
    out: Path,
    choice: Choice,
) -> Iterator[str]:
    """Write NAME_attention.png of each image as it comes, and attention_distance.png of all.

    `images` are the names of their files, and the images at the model's size. Yields a line for
    each picture: its path, or why it is missing; without images nothing.

    Raises UserError: no such layer or head, or `out` cannot be made.
    """
    inspect = make_inspection(trained)
    count, sums = 0, {}  # distances by layer
    taken: set[str] = set()
    for name, view in images:
        output, heat, seen = inspect(jnp.asarray(view[None]))
        other = extra_rollout(trained.model, seen)
        output, heat, seen, other = jax.device_get((output, heat, seen, other))
        layers = head_maps(trained.model, trained.variables["params"], seen, view.shape[:2])
        image = enlarged(picture(trained, view))
        first = [
            Tile(image, shown(Path(name).name)),
            Tile(overlay(image, heat[0]), _top(trained, output.logits)),
        ]
        if other is not None:
            mean = overlay(image, other[0].reshape(heat[0].shape))
            first.append(Tile(mean, "attention rollout, mean over the patches"))
        shape = "{} x {}".format(*heat.shape[1:])
        first.append(Tile(colors(spread(heat[0])), f"{method(trained.model)}, {shape}"))
        drawn = chosen(layers, choice)
        if drawn:
            ramp = overlay(_LEGEND, np.linspace(0, 1, _SIDE)[None])
            first.append(Tile(ramp, _legend(drawn)))
        rows = [first, *(_row(image, layer, choice) for layer in drawn)]
        png = render(rows, f"{trained.name}: {method(trained.model)}")
        yield write(out, f"{unused(Path(name).stem, taken)}_attention.png", png)
        count += 1
        sums = {layer: sums.get(layer, 0) + far for layer, far in _distances(layers).items()}
    if sums:
        mean = {layer: total / count for layer, total in sums.items()}
        title = f"{trained.name}: mean attention distance, {count} image{'s' * (count > 1)}"
        yield write(out, "attention_distance.png", _draw_distances(mean, title))
    elif count:
        yield "no attention_distance.png: the model has no attention among patches"


def chosen(layers: Sequence[HeadMaps], choice: Choice) -> list[HeadMaps]:
    """Return the layers to draw: by default up to four of a kind, first and last included.

    Raises UserError: no such layer or head.
    """
    if not layers and choice != Choice():
        raise UserError("the model has no attention; drop --layers and --heads")
    heads = max((len(layer.maps) for layer in layers), default=0)
    counts = {"layers": len({layer.layer for layer in layers}), "heads": heads}
    for (what, count), given in zip(counts.items(), choice, strict=True):
        beyond = [number for number in given if isinstance(number, int) and number >= count]
        if beyond:
            raise UserError(f"--{what}={beyond[0]}: the model has {count} {what}, 0 to {count - 1}")
    if isinstance(choice.layers, tuple):
        return [layer for layer in layers if layer.layer in choice.layers]
    if choice.layers:
        return list(layers)
    kinds = dict.fromkeys(layer.kind for layer in layers)
    of_kind = [sorted({each.layer for each in layers if each.kind == kind}) for kind in kinds]
    numbers = {some[i] for some in of_kind for i in spaced(len(some), _LAYERS)}
    return [layer for layer in layers if layer.layer in numbers]


def _row(image: np.ndarray, layer: HeadMaps, choice: Choice) -> list[Tile]:
    """Draw a layer's mean over its heads, then the chosen heads."""
    count = len(layer.maps)
    heads = choice.heads
    if isinstance(heads, str):
        heads = range(count) if heads else spaced(count, _HEADS)
    title = f"layer {layer.layer}: {layer.name}\n{layer.query}\nmean of {count} heads"
    tiles = [_map_tile(image, layer, layer.maps.mean(axis=0), title)]
    for head in (head for head in heads if head < count):
        low, high = layer.maps[head].min(), layer.maps[head].max()
        lines = [f"head {head}: {low:.3f} to {high:.3f}"]
        if layer.gates is not None:
            lines.append(f"gate {layer.gates[head]:.2f}")
        if layer.distance is not None:
            lines.append(f"{layer.distance[head]:.1f} px")
        tiles.append(_map_tile(image, layer, layer.maps[head], "\n".join(lines)))
    return tiles


def _legend(layers: Sequence[HeadMaps]) -> str:
    """Say what the colours mean, and the numbers below the maps."""
    lines = ["least to most attention, in each map by itself; below it that range"]
    if any(layer.gates is not None for layer in layers):
        lines.append("gate: share of attention by position")
    if any(layer.distance is not None for layer in layers):
        lines.append("px: mean distance in pixels")
    return "\n".join(lines)


def _map_tile(image: np.ndarray, layer: HeadMaps, heat: np.ndarray, caption: str) -> Tile:
    drawn = overlay(image, heat)
    for axis, edges in enumerate(layer.edges):
        side, tokens = drawn.shape[axis], heat.shape[axis]
        thick = max(1, round(2 * side / _SIDE))
        for edge in edges:
            at = round(edge * side / tokens)
            np.moveaxis(drawn, axis, 0)[max(0, at - thick // 2) : at - thick // 2 + thick] = _EDGE
    return Tile(drawn, caption)


def enlarged(view: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "P Q C"]:
    """Repeat the pixels of a small image, for a map to lie over it."""
    times = max(1, _SIDE // max(view.shape[:2]))
    return view.repeat(times, axis=0).repeat(times, axis=1)


def _top(trained: Trained, logits: Float[np.ndarray, "1 K"]) -> str:
    """List the likeliest classes, one a line; without a head, name the map instead."""
    if not trained.has_head:
        return method(trained.model)
    shares = np.asarray(probabilities(logits, trained.loss))[0]
    best = np.argsort(-shares, kind="stable")[:_CLASSES]
    return "\n".join(f"{trained.class_names[i]}: {100 * shares[i]:.1f} %" for i in best)


def unused(stem: str, taken: set[str]) -> str:
    """Return a file's stem, numbered where an image before it has the same; adds it to `taken`."""
    numbered = (f"{stem}_{number}" for number in itertools.count(2))
    name = next(name for name in itertools.chain([stem], numbered) if name not in taken)
    taken.add(name)
    return name


def _distances(layers: Sequence[HeadMaps]) -> dict[int, np.ndarray]:
    """Return each layer's distances: those of the first of its maps, which covers all heads."""
    far = {each.layer: each.distance for each in reversed(layers) if each.distance is not None}
    return dict(sorted(far.items()))


def _draw_distances(distances: dict[int, np.ndarray], title: str) -> bytes:
    figure, (axes,) = figures.panels((6.4, 4.0))
    for head in range(max(map(len, distances.values()))):
        points = [(layer, each[head]) for layer, each in distances.items() if head < len(each)]
        colour = figures.COLOURS[head % (len(figures.COLOURS) - 1)]
        axes.scatter(*zip(*points, strict=True), s=18, color=colour, alpha=0.8)
    means = [each.mean() for each in distances.values()]
    axes.plot(list(distances), means, color="0.4", linewidth=1, label="mean over the heads")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="layer", ylabel="distance (pixels)", ylim=(0, None))
    return figures.finish(figure, axes, title)
