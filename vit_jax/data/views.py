# SPDX-License-Identifier: Apache-2.0
"""Which images of an example a batch holds: one array for each view."""

import dataclasses
from collections.abc import Mapping

from vit_jax.data.config import TransformConfig
from vit_jax.data.transform import Transform


@dataclasses.dataclass(frozen=True, kw_only=True)
class View:
    """One array of images: [B, H, W, C] uint8, or [B, count, H, W, C] where `count` is above 1.

    What each draws at random depends on (seed, position in the stream, number of the view) alone.

    Attributes:
        transform: what happens to the image.
        size: (H, W).
        channels: 1 or 3.
        count: how many times the transform draws.
    """

    transform: TransformConfig
    size: tuple[int, int]
    channels: int
    count: int = 1

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example's images."""
        several = () if self.count == 1 else (self.count,)
        return (*several, *self.size, self.channels)


def one_view(transform: TransformConfig, size: tuple[int, int], channels: int) -> dict[str, View]:
    """Return the views of a batch that holds each image once, as "image"."""
    return {"image": View(transform=transform, size=size, channels=channels)}


@dataclasses.dataclass(frozen=True)
class Draw:
    """One image of a view.

    Attributes:
        array: name of the view.
        index: which of the view's images; None where it has one.
        number: of this draw among all of an example's; 0 is the first.
        transform: ready to run.
    """

    array: str
    index: int | None
    number: int
    transform: Transform


def draws(views: Mapping[str, View], *, exact: bool, fill: tuple[int, ...] = (128,)) -> list[Draw]:
    """List every image that a batch holds of an example; see `Transform` for the arguments."""
    found: list[Draw] = []
    for name, view in views.items():
        transform = Transform(
            cfg=view.transform, image_size=view.size, channels=view.channels, exact=exact, fill=fill
        )
        for index in range(view.count):
            which = None if view.count == 1 else index
            found.append(Draw(name, which, len(found), transform))
    return found
