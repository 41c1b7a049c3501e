# SPDX-License-Identifier: Apache-2.0
"""Augmentation policies by the text that names them, and colour jitter; uint8 in, uint8 out."""

from vit_jax.data.images.ops import Policy
from vit_jax.errors import UserError


def parse(text: str, fill: tuple[int, ...] = (128,)) -> Policy | None:
    """Read an augmentation policy in one of the forms of docs/augmentation.md; "" is None.

    Where the published policy takes the mean of the data for what comes in from outside the image,
    it takes `fill`, a level 0..255, one or one per channel.

    Raises UserError: the text has none of the known forms, or a number in it is out of range.
    """
    if not text:
        return None
    # Late: most runs of small images have no policy.
    from vit_jax.data.augment import (
        autoaugment,
        randaug,
        self_supervised,
        three_augment,
        timm_randaug,
    )

    readers = (randaug, timm_randaug, three_augment, self_supervised, autoaugment)
    for reader in readers:
        policy = reader.read(text, fill)
        if policy is not None:
            return policy
    forms = " or ".join(reader.FORM for reader in readers)
    raise UserError(f"auto_augment={text!r} is no policy; write '' or {forms}")
