# SPDX-License-Identifier: Apache-2.0
"""How the images of a published network are prepared, in one line."""

from vit_jax.data import Crop
from vit_jax.inference.trained import Trained
from vit_jax.weights.published.describe import preprocessing


def describe_input(trained: Trained) -> str:
    """Describe in one line how images are prepared for a published file, and by which source.

    "" for a run, whose config has it.
    """
    if trained.config is not None:
        return ""
    published = preprocessing(trained.source, trained.model)
    transform, (height, width) = trained.transform, trained.image_size
    crop = transform.crop.value
    if transform.crop in (Crop.CENTER, Crop.SQUASH_CENTER):
        crop += f" {transform.crop_ratio:.4g}"
    if transform.crop is Crop.CENTER:
        crop += f" ({transform.crop_rule.value})"
    mean, std = (",".join(f"{x:.6g}" for x in values) for values in (trained.mean, trained.std))
    used = {key: getattr(trained, key) for key in ("mean", "std", "transform")}
    changed = [key for key, value in used.items() if value != getattr(published, key)]
    but = f", but for {' and '.join(changed)}" if changed else ""
    other = ""
    if published.size not in (None, trained.image_size):
        other = " (published for {}x{})".format(*published.size)
    return (
        f"images: {height}x{width}{other}, {crop}, {transform.resize.value}, mean {mean}, "
        f"std {std}; from {published.source}{but}"
    )
