# SPDX-License-Identifier: Apache-2.0
"""How sure a measured accuracy is."""

import math

_Z95 = 1.959963984540054  # standard deviations either side that hold 95 % of a normal distribution


def wilson(hits: int, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share (doi:10.1080/01621459.1927.10502953).

    Unlike the normal approximation it stays in [0, 1] and is right at 0 and at `count` hits too.
    """
    share, z2 = hits / count, _Z95**2
    centre = share + z2 / (2 * count)
    half = _Z95 * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    scale = 1 + z2 / count
    return max((centre - half) / scale, 0.0), min((centre + half) / scale, 1.0)
