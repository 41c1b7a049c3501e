# SPDX-License-Identifier: Apache-2.0
"""A kernel of images with other channels, by timm's rule (timm.models.adapt_input_conv)."""

import logging
import math

import numpy as np
from jaxtyping import Float

_log = logging.getLogger(__name__)


def fits(old: int, new: int) -> bool:
    """Return whether there is a rule from one number of channels to another.

    To one channel from at most three, which show one image; from colours or one channel to any.
    """
    return old == new or old in (1, 3) or (new == 1 and old < 3)


def adapted(
    kernel: Float[np.ndarray, "H W C D"], count: int, name: str
) -> Float[np.ndarray, "H W K D"]:
    """Return a kernel for `count` channels, and say so in one line; `name` is its file's.

    For one channel it is summed, so that a grey image gives what its copy in each channel gave. For
    more it is repeated and scaled, so that a constant gives the same.
    """
    old = kernel.shape[2]
    if count == 1:
        what, found = "summed over them", kernel.sum(axis=2, keepdims=True)
    else:
        what = f"repeated, times {old}/{count}"
        copies = np.tile(kernel, (1, 1, math.ceil(count / old), 1))[:, :, :count]
        found = copies * np.float32(old / count)
    _log.warning(
        "%s sees %d channels, this model %d: the kernel that sees them is %s",
        name,
        old,
        count,
        what,
    )
    return found
