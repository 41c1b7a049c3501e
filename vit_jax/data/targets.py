# SPDX-License-Identifier: Apache-2.0
"""What an example has besides its image where every pixel counts: classes, segments, depth.

A source that has such targets says of which kind (`target_kind`) and gives each as a
`PixelTarget`, in pixels of the upright stored image. Training sees them through the crop and flip
of their image, in arrays of a batch (`FIELDS`); evaluations read the `PixelTarget` itself, so that
what is measured does not depend on the size that the model takes.
"""

import dataclasses
import enum

import numpy as np
from jaxtyping import Bool, Float32, Int16, Int32

IGNORED = -1  # the class of a pixel that neither teaches nor counts
# Arrays of a batch that are made of a `PixelTarget`, for images of H x W pixels:
LABEL_MAP = "label_map"  # int16 [B, H, W], the class of each pixel or IGNORED
SEGMENTS = "segments"  # uint8 [B, T, H, ceil(W / 8)], bits of the masks (numpy's packbits)
SEGMENT_CLASS = "segment_class"  # int32 [B, T], -1 for no segment
SEGMENTS_CUT = "segments_cut"  # int32 [B], how many segments a batch had no room for
DEPTH = "depth"  # float32 [B, H, W], 0 where it is not known


class TargetKind(enum.StrEnum):
    """What a source knows of the pixels of its images.

    PIXELS has a class for each pixel (semantic segmentation). SEGMENTS has masks or boxes, each of
    a class (instances, or things and stuff of a panoptic set). DEPTH has a number for each pixel.
    """

    NONE = ""
    PIXELS = "pixels"
    SEGMENTS = "segments"
    DEPTH = "depth"


# The arrays that each kind gives to a training batch.
FIELDS = {
    TargetKind.NONE: (),
    TargetKind.PIXELS: (LABEL_MAP,),
    TargetKind.SEGMENTS: (SEGMENTS, SEGMENT_CLASS, SEGMENTS_CUT),
    TargetKind.DEPTH: (DEPTH,),
}


def shapes(size: tuple[int, int], most: int) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Return shape and dtype of the arrays of one example: of (H, W) pixels, `most` segments."""
    height, width = size
    found = {
        LABEL_MAP: ((height, width), np.int16),
        SEGMENTS: ((most, height, -(-width // 8)), np.uint8),
        SEGMENT_CLASS: ((most,), np.int32),
        SEGMENTS_CUT: ((), np.int32),
        DEPTH: ((height, width), np.float32),
    }
    return {key: (shape, np.dtype(dtype)) for key, (shape, dtype) in found.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PixelTarget:
    """What is known of one image's pixels; what its kind does not have is None.

    Attributes:
        size: (h, w) of the upright image.
        label_map: the class of each pixel, or IGNORED.
        boxes: (left, top, right, bottom) of each of n segments, in pixels.
        masks: of each segment; None where the source has boxes alone.
        classes: of each segment.
        crowd: whether a segment stands for many of its class, too close to be told apart.
        depth: of each pixel, in the source's unit; 0 where it is not known.
    """

    size: tuple[int, int]
    label_map: Int16[np.ndarray, "h w"] | None = None
    boxes: Float32[np.ndarray, "n 4"] | None = None
    masks: Bool[np.ndarray, "n h w"] | None = None
    classes: Int32[np.ndarray, " n"] | None = None
    crowd: Bool[np.ndarray, " n"] | None = None
    depth: Float32[np.ndarray, "h w"] | None = None
