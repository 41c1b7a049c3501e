# SPDX-License-Identifier: Apache-2.0
"""The handwritten digits that scikit-learn ships, written once as a TFDS ArrayRecord dataset.

UCI's Optical Recognition of Handwritten Digits, test set: 1,797 scans of 8x8. Train is the first
1,437 in the published order and test the last 360, which other people wrote: the honest split.
"""

import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from absl import logging

from vit_jax.errors import UserError

NAME = "digits"
_NUM_TRAIN = 1437


class Digits(tfds.core.GeneratorBasedBuilder):
    """The builder; images are PNG, since TFDS needs TensorFlow to encode arrays, not files."""

    name = NAME
    VERSION = tfds.core.Version("1.0.0")
    # Nothing is downloaded, so there are no checksums beside this file; to look for them, TFDS
    # 4.9 imports a package that it does not install.
    code_path = None

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="8x8 handwritten digits (UCI Optical Recognition of Handwritten Digits).",
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80",
            disable_shuffling=True,  # slices such as train[1293:] mean the published order
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict]]]:
        from sklearn.datasets import load_digits

        images, labels = load_digits(return_X_y=True)
        # Ink is counted 0..16 in each 4x4 block of the scan.
        pixels = (images.reshape(-1, 8, 8) * (255 / 16)).round().astype("uint8")
        return {
            "train": self._generate_examples(pixels[:_NUM_TRAIN], labels[:_NUM_TRAIN]),
            "test": self._generate_examples(pixels[_NUM_TRAIN:], labels[_NUM_TRAIN:]),
        }

    def _generate_examples(self, pixels: Any, labels: Any) -> Iterator[tuple[int, dict]]:
        from PIL import Image

        for i, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            png = io.BytesIO()
            Image.fromarray(image).save(png, "PNG")
            png.seek(0)  # TFDS reads on from here
            yield i, {"image": png, "label": int(label)}


def prepare(data_dir: Path) -> Path:
    """Write the dataset below `data_dir` unless it is there, and return its directory.

    It is written aside and renamed: a killed process leaves nothing half written, and of two that
    start at once one wins. A UserError if `data_dir` cannot be written.
    """
    target = data_dir / NAME / str(Digits.VERSION)
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.mkdtemp(prefix=f".{NAME}-", dir=data_dir)
    except OSError as error:
        raise UserError(
            f"cannot write the digits dataset to {data_dir} ({error.strerror}); set data.data_dir "
            "or $TFDS_DATA_DIR to a directory that can be written"
        ) from error
    logging.info("writing the digits dataset to %s", target)
    try:
        builder = Digits(data_dir=scratch, file_format="array_record")
        with contextlib.redirect_stdout(io.StringIO()):  # it speaks of the scratch directory
            tfds.disable_progress_bar()
            builder.download_and_prepare()
        try:
            os.rename(builder.data_dir, target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target
