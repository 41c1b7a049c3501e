# SPDX-License-Identifier: Apache-2.0

import numpy as np
import pytest
from sklearn.datasets import load_digits

from vit_jax.data import open_source
from vit_jax.data.images.decode import decode
from vit_jax.data.sources.digits import prepare
from vit_jax.errors import UserError


def test_pixels_labels_and_order_are_scikit_learns(tfds_dir):
    images, labels = load_digits(return_X_y=True)
    for split, wanted in [
        ("train", range(1437)),
        ("train[1293:]", range(1293, 1437)),
        ("test", range(1437, 1797)),
    ]:
        source = open_source("digits", str(tfds_dir), split)
        assert len(source) == len(wanted)
        assert source.class_names == tuple("0123456789")
        for i in (0, 1, len(wanted) // 2, len(wanted) - 1):
            example = source.read(i)
            data, label = example["image"], example["label"]
            levels = decode(data, 1).reshape(64) * (16 / 255)
            assert label == labels[wanted[i]]
            np.testing.assert_allclose(levels, images[wanted[i]], atol=0.04)


def test_a_dataset_that_is_there_is_not_written_again(tfds_dir):
    before = prepare(tfds_dir).stat().st_mtime_ns
    assert prepare(tfds_dir).stat().st_mtime_ns == before


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"cannot write .*set data\.data_dir"):
        open_source("digits", str(tmp_path / "file"), "train")
