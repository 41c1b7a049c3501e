# SPDX-License-Identifier: Apache-2.0
"""What a config's augmentation does to images and the targets of their pixels, as a sheet."""

import dataclasses

import numpy as np
from jaxtyping import Int, Num, UInt8

from vit_jax import data
from vit_jax.config.tree import Config
from vit_jax.data.images import bands
from vit_jax.data.targets import DEPTH, FIELDS, LABEL_MAP, SEGMENT_CLASS, SEGMENTS, TargetKind
from vit_jax.figures import masks
from vit_jax.figures.contact_sheet import Tile, render
from vit_jax.objectives import Objective

_IMAGES = 4  # of the training split
_LEVELS = 16  # of depth


def transform_sheet(cfg: Config, objective: Objective, source: data.Source, count: int) -> bytes:
    """Draw a row for each of the run's first images: as many draws, each under its target.

    Classes have a colour each, segments too; depth goes from near to far through the colours of a
    map. What is ignored or not known shows the image alone.

    Raises UserError: targets that the transform cannot move, or that the source has not; DataError:
    an example that cannot be used.
    """
    fields = FIELDS[TargetKind(objective.cfg.pixel_target)]

    def batch(of: data.Source, size: int) -> data.Batch:
        settings = dataclasses.replace(
            cfg.data, batch_size=size, num_workers=0, prefetch=1, repeats=1
        )
        stream = data.train_batches(
            of, settings, views=objective.views, fields=fields, seed=cfg.seed
        )
        with stream:
            return next(stream)

    rows = []
    for index in batch(source, min(_IMAGES, len(source)))["index"].tolist():
        drawn = batch(data.Sample(source, np.array([index], np.int32)), count)
        numbers = [numbers_of({key: drawn[key][j] for key in fields}) for j in range(count)]
        images = [bands.picture(each, cfg.data.bands_shown) for each in drawn["image"]]
        rows.append(
            [
                Tile(_under(image, each), f"{source.example_id(index)}, draw {j}")
                for j, (image, each) in enumerate(zip(images, numbers, strict=True), 1)
            ]
        )
    return render(rows, f"{source.name}: data.transform with its targets ({', '.join(fields)})")


def numbers_of(target: dict[str, np.ndarray]) -> Int[np.ndarray, "H W"]:
    """Return what each pixel of one example is, as a number with a colour; -1 for nothing.

    A class, a segment's number, the later over the earlier, or a level of depth.
    """
    if LABEL_MAP in target:
        return target[LABEL_MAP].astype(np.int32)
    if DEPTH in target:
        return _levels(target[DEPTH])
    bits = np.unpackbits(target[SEGMENTS], axis=-1).astype(bool)
    found = np.full(bits.shape[1:], -1, np.int32)
    for number in np.flatnonzero(target[SEGMENT_CLASS] >= 0).tolist():
        found[bits[number]] = number
    return found


def _levels(depth: Num[np.ndarray, "H W"]) -> Int[np.ndarray, "H W"]:
    known = depth > 0
    if not known.any():
        return np.full(depth.shape, -1, np.int32)
    least, most = depth[known].min(), depth[known].max()
    share = (depth - least) / max(float(most - least), 1e-9)
    return np.where(known, np.clip(share * _LEVELS, 0, _LEVELS - 1), -1).astype(np.int32)


def _under(
    image: UInt8[np.ndarray, "H W C"], numbers: Int[np.ndarray, "H W"]
) -> UInt8[np.ndarray, "H W 3"]:
    width = image.shape[1]  # bits are whole bytes a row
    return masks.over(image, numbers[:, :width])
