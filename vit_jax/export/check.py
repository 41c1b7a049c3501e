# SPDX-License-Identifier: Apache-2.0
"""What an export changed: its output beside the model's own, on real images."""

import dataclasses
from collections.abc import Callable

import cv2
import numpy as np
from jaxtyping import Float, UInt8

from vit_jax.data import short_name
from vit_jax.data.images import ops
from vit_jax.data.stream.transform import Transform
from vit_jax.errors import UserError
from vit_jax.evals import open_splits
from vit_jax.inference.forward import make_forward, output_name
from vit_jax.inference.trained import Trained

COUNT = 16
Images = UInt8[np.ndarray, "B H W C"]
Logits = Float[np.ndarray, "B K"]


@dataclasses.dataclass(frozen=True)
class Change:
    """How far an export's logits, or features, are from the model's."""

    images: str  # what was looked at, in words
    count: int  # how many
    largest: float  # the largest difference of any logit
    scale: float  # the largest logit
    same_top1: int  # images with the same first guess
    output: str = "logits"  # or "features", which guess nothing

    def __str__(self) -> str:
        """Describe it in one line."""
        guess = f", the first guess is the same for {self.same_top1}"
        return (
            f"on {self.count} {self.images} {self.output} (up to {self.scale:.3g}) change by at "
            f"most {self.largest:.2g}{guess if self.output == 'logits' else ''}"
        )


def compare(trained: Trained, run: Callable[[Images], Logits]) -> Change:
    """Run an export and the model that it was made from on the same images.

    The export gets them in two batches, of one and of all others: it must accept any size.

    Raises UserError: numbers that are not finite, of either.
    """
    (images, name), what = sample_images(trained), output_name(trained)
    before = np.asarray(getattr(make_forward(trained)(images), what))
    if not np.isfinite(before).all():
        raise UserError(
            f"{trained.ref}: on {name} its {what} are not finite: nothing to export; take weights "
            "from before the training diverged, such as ckpt:DIR@STEP"
        )
    after = np.concatenate([np.asarray(run(images[:1])), np.asarray(run(images[1:]))])
    if not np.isfinite(after).all():
        why = f"on {name} the export's {what} are not finite, and the model's are"
        raise UserError(f"{why}; choose another --dtype, such as float32")
    return Change(
        images=name,
        count=len(images),
        largest=float(np.abs(after - before).max()),
        scale=float(np.abs(before).max()),
        same_top1=int((after.argmax(1) == before.argmax(1)).sum()),
        output=what,
    )


def sample_images(trained: Trained) -> tuple[Images, str]:
    """Return a few images as the model takes them, and what they are.

    They are spread over the split that the run evaluates on. Where there is no run, or not its data
    any more, they are cut out of the two photographs that come with scikit-learn.
    """
    cfg = trained.config
    if cfg is not None and cfg.evals:
        try:
            source = open_splits(next(iter(cfg.evals.values())), cfg.data)[""]
        except UserError:
            source = None
        if source is not None and len(source):
            transform = Transform(
                cfg=trained.transform,
                image_size=trained.image_size,
                channels=trained.channels,
                exact=True,
                reading=trained.reading,
            )
            rng = np.random.default_rng(0)  # of which an evaluation's transform draws nothing
            chosen = np.linspace(0, len(source) - 1, min(COUNT, len(source))).astype(int)
            views = [transform(source.read(int(i))["image"], rng) for i in chosen]
            return np.stack(views), f"images of {short_name(source.name)}"
    return np.stack(_photographs(trained)), "views of two photographs"


def _photographs(trained: Trained) -> list[UInt8[np.ndarray, "H W C"]]:
    from sklearn.datasets import load_sample_images  # late: slow to import

    views = []
    for photo in load_sample_images().images:
        if trained.channels == 1:
            photo = cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)[:, :, None]
        height, width = photo.shape[:2]
        for i in range(COUNT // 2):
            # Windows of half the sides, from corner to corner.
            top, left = (i * height // COUNT, i % 4 * width // 8)
            window = photo[top : top + height // 2, left : left + width // 2]
            views.append(ops.resize(window, trained.image_size, trained.transform.resize))
    return views
