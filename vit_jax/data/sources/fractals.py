# SPDX-License-Identifier: Apache-2.0
"""Images drawn by formulas, as many as wanted, to pretrain on where there are none.

FractalDB (Kataoka et al., arXiv:2101.08515): a class is an iterated function system, some affine
maps that contract the plane; an example is its attractor, one parameter of each map changed a
little. Nothing is read: class and example are functions of their numbers. They are drawn by
`Generator.random` alone, the values of which no version of NumPy changes.
"""

import functools
import re

import cv2
import numpy as np
from jaxtyping import Float64, UInt8

from vit_jax.data.account import Account
from vit_jax.data.names import with_known_names
from vit_jax.data.sources.base import Example, Labelled, absolute_slices, digest_of
from vit_jax.errors import UserError

SIDE = 64  # pixels
_SIZES = {"train": 100, "val": 10}  # examples of a class
_DEFAULT, _MOST = 100, 10_000  # classes
_MAPS = (2, 8)  # of a class: at least, at most
_FILLED = 0.2  # the least share of a drawing's pixels that a class hits
_CHANGES = (0.8, 0.9, 1.0, 1.1, 1.2)  # of a parameter, from example to example
_POINTS, _SETTLING, _STEPS = 2048, 15, 30  # points that wander at once, before and while drawn
_NAME = re.compile(r"fractals(?:/([1-9]\d*))?")

Maps = Float64[np.ndarray, "maps 6"]  # x' = a x + b y + e, y' = c x + d y + f, as a, b, c, d, e, f


class FractalSource(Labelled):
    """Examples of one split; see `Source`."""

    def __init__(self, num_classes: int, split: str) -> None:
        sizes = {name: num_classes * each for name, each in _SIZES.items()}
        starts = {"train": 0, "val": sizes["train"]}
        split = with_known_names(split, list(sizes))
        slices = absolute_slices(split, sizes, "fractals")
        # Neighbours are of different classes, so that a slice holds all of them.
        self._numbers = np.concatenate([starts[s] + np.arange(a, b) for s, a, b in slices])
        self.labels = (self._numbers % num_classes).astype(np.int32)
        self.class_names = tuple(f"fractal {k}" for k in range(num_classes))
        self.name = f"fractals/{num_classes}[{split}]"
        self.account = Account(unit="images", num_classes=num_classes, used=sizes)

    def __len__(self) -> int:
        return len(self._numbers)

    def read(self, index: int) -> Example:
        """Draw an example; returns its PNG, grey, `SIDE` pixels square, and its class id."""
        label = int(self.labels[index])
        rng = _generator(label, 1 + int(self._numbers[index]))
        maps = system(label).copy()
        which, by = rng.random((2, len(maps)))
        change = np.array(_CHANGES)[(by * len(_CHANGES)).astype(int)]
        maps[np.arange(len(maps)), (which * 6).astype(int)] *= change
        found, png = cv2.imencode(".png", draw(maps, rng))
        assert found
        return {"image": png.tobytes(), "label": label}

    def example_id(self, index: int) -> str:
        return f"{self.name} example {index}"

    def digest(self) -> str:
        return digest_of([self.name.encode()])


def open_fractals(name: str, split: str) -> FractalSource:
    """Open "fractals", of 100 classes, or "fractals/K"; splits are train and val.

    Raises UserError: another number of classes, or another split.
    """
    found = _NAME.fullmatch(name)
    num_classes = int(found[1] or _DEFAULT) if found else 0
    if not 2 <= num_classes <= _MOST:
        raise UserError(f"data.name={name}: write it as fractals/K, K of 2 to {_MOST:,} classes")
    return FractalSource(num_classes, split)


@functools.lru_cache(maxsize=_MOST)
def system(label: int) -> Maps:
    """Return the maps of a class: the first drawn whose attractor fills enough of its square."""
    rng = _generator(label, 0)
    while True:
        least, most = _MAPS
        maps = _contractions(rng, least + int(rng.random() * (most - least + 1)))
        if (draw(maps, rng) > 0).mean() >= _FILLED:
            return maps


def _generator(label: int, number: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([label, number], np.uint64)))


def _contractions(rng: np.random.Generator, count: int) -> Maps:
    """Draw maps with parameters uniform in [-1, 1], of those that contract in all directions."""
    drawn = 2 * rng.random((32 * count, 6)) - 1
    a, b, c, d, *_ = drawn.T
    squares, area = a * a + b * b + c * c + d * d, a * d - b * c
    norm = np.sqrt((squares + np.sqrt(np.maximum(squares**2 - 4 * area**2, 0))) / 2)  # spectral
    return drawn[norm < 0.95][:count]


def draw(maps: Maps, rng: np.random.Generator) -> UInt8[np.ndarray, "S S"]:
    """Draw the attractor of some maps, white on black, to the edges of its square.

    Many points move at once, each by a map drawn in proportion to its determinant ("chaos game").
    """
    areas = np.abs(maps[:, 0] * maps[:, 3] - maps[:, 1] * maps[:, 2]) + 0.01
    ends = np.cumsum(areas)[:-1] / areas.sum()
    chosen = np.searchsorted(ends, rng.random((_SETTLING + _STEPS, _POINTS)), side="right")
    points, visited = np.zeros((_POINTS, 2)), []
    for step, ids in enumerate(chosen):
        a, b, c, d, e, f = maps[ids].T
        x, y = points.T
        points = np.stack([a * x + b * y + e, c * x + d * y + f], axis=1)
        if step >= _SETTLING:
            visited.append(points)
    cloud = np.concatenate(visited)
    low, high = cloud.min(axis=0), cloud.max(axis=0)
    columns, rows = ((cloud - low) / (high - low) * (SIDE - 1)).astype(int).T
    image = np.zeros((SIDE, SIDE), np.uint8)
    image[rows, columns] = 255
    return image
