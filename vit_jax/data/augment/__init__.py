# SPDX-License-Identifier: Apache-2.0
"""Augmentation policies by the text that names them, and colour jitter; uint8 in, uint8 out."""

from vit_jax.data.augment import autoaugment, randaug, three_augment, timm_randaug
from vit_jax.data.augment.pillow import jitter
from vit_jax.data.augment.policy import Policy
from vit_jax.errors import UserError

# What reads each form of `TransformConfig.auto_augment`, and how the form is written.
_READERS = (randaug, timm_randaug, three_augment, autoaugment)


def parse(text: str, fill: tuple[int, ...] = (128,)) -> Policy | None:
    """Read an augmentation policy; "" is None.

    Args:
        text: one of the forms in docs/augmentation.md.
        fill: level 0..255 of what comes in from outside the image, one or one per channel, where
            the published policy takes the mean of the data.

    Raises:
        UserError: the text has none of the known forms, or what it says in one of them cannot be.
    """
    if not text:
        return None
    for reader in _READERS:
        policy = reader.read(text, fill)
        if policy is not None:
            return policy
    forms = " or ".join(reader.FORM for reader in _READERS)
    raise UserError(f"auto_augment={text!r} is no policy; write '' or {forms}")


__all__ = ["Policy", "jitter", "parse"]
