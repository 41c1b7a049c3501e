# SPDX-License-Identifier: Apache-2.0
"""Every example's features once, in the split's order; on the disk all of them or none."""

import dataclasses
import os
from pathlib import Path

import jax
import numpy as np
import pytest
from PIL import Image

from tests.unit.evals.probes.test_features import MODEL, MODULE, extract, names, open_images
from tests.unit.weights.runs import make_state
from vit_jax import data, models
from vit_jax.evals.probes import features


@pytest.fixture(scope="module")
def variables():
    return {"params": make_state(MODEL, 0).params}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_images(tmp_path_factory.mktemp("images"))


# 15 images in batches of 8 (4 does not divide over 8 devices), of 4, and in one that is too large.
@pytest.mark.parametrize(("num_devices", "batch_size"), [(8, 4), (1, 4), (1, 32)])
def test_features_are_the_forward_pass_of_each_example(source, variables, num_devices, batch_size):
    found = extract(source, variables, num_devices=num_devices, batch_size=batch_size)
    assert found.features.shape == (15, 16)
    assert found.features.dtype == np.float32
    forward = jax.jit(lambda image: MODULE.apply(variables, image).features)
    for i in range(15):
        with Image.open(source.example_id(i)) as image:
            pixels = np.asarray(image, np.float32)[None] / 255
        np.testing.assert_allclose(found.features[i], forward((pixels - 0.5) / 0.25)[0], atol=1e-4)
        assert found.class_names[found.labels[i]] == Path(source.example_id(i)).parent.name
    distances = np.abs(found.features[:, None] - found.features[None]).max(axis=2)
    assert distances[~np.eye(15, dtype=bool)].min() > 0.01


def test_bfloat16_comes_as_float32_that_is_close(source, variables):
    module = models.create(dataclasses.replace(MODEL, dtype=models.DType.BFLOAT16))

    def half(variables, batch):
        return module.apply(variables, data.normalize(batch["image"], (0.5,), (0.25,))).features

    found = extract(source, variables, encode=half)
    exact = extract(source, variables)
    assert found.features.dtype == np.float32
    error = np.abs(found.features - exact.features).mean() / np.abs(exact.features).mean()
    assert 0 < error < 0.1


def test_files_hold_what_memory_would(source, variables, tmp_path):
    folder = tmp_path / "new" / "features"
    with features.written(folder, force=False) as files:
        found = extract(source, variables, allocate=files.allocate("train"))
        files.write_lines("names_train.txt", [source.example_id(i) for i in range(14)] + ["a\nb"])
        assert isinstance(found.features, np.memmap)
        files.write_lines("class_names.txt", ("cat", "dog"))
        files.write_readme("Title", ("train",))
        assert names(folder) == [".partial"]
    expected = extract(source, variables)
    stored = np.load(folder / "features_train.npy")
    assert stored.dtype == np.float32
    np.testing.assert_array_equal(stored, expected.features)
    np.testing.assert_array_equal(found.features, expected.features)
    np.testing.assert_array_equal(np.load(folder / "labels_train.npy"), expected.labels)
    text = (folder / "FEATURES.md").read_text()
    assert text.startswith("Title\n")
    here, loaded = os.getcwd(), {}
    try:
        os.chdir(folder)
        exec(text.split("```python\n")[1].split("```")[0], loaded)
    finally:
        os.chdir(here)
    np.testing.assert_array_equal(loaded["features_train"], expected.features)
    np.testing.assert_array_equal(loaded["labels_train"], expected.labels)
    assert loaded["class_names"] == ["cat", "dog"]
    assert loaded["names_train"] == [source.example_id(i) for i in range(14)] + ["'a\\nb'"]
