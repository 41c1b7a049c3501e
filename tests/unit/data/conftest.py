# SPDX-License-Identifier: Apache-2.0
"""Real image files and real TFDS datasets for the tests of the input pipeline."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="session")
def photo() -> np.ndarray:
    """A photograph, uint8 (427, 640, 3)."""
    from sklearn.datasets import load_sample_image

    return load_sample_image("china.jpg")


def encode(image: np.ndarray, form: str, **options) -> bytes:
    """Write an image to bytes by Pillow, the one library that `decode` uses last."""
    out = io.BytesIO()
    Image.fromarray(image).save(out, form, **options)
    return out.getvalue()


@pytest.fixture(scope="session")
def folder(tmp_path_factory, photo) -> Path:
    """Photographs in folders: train/{cat,dog,emu}, val/{dog,owl}, in every file type."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    forms = [("jpg", "JPEG"), ("JPEG", "JPEG"), ("png", "PNG"), ("webp", "WEBP")]
    for split, class_name, count in [
        ("train", "cat", 9),
        ("train", "dog", 7),
        ("train", "emu", 8),
        ("val", "dog", 3),
        ("val", "owl", 2),
    ]:
        directory = root / split / class_name
        directory.mkdir(parents=True)
        for i in range(count):
            suffix, form = forms[i % len(forms)]
            top, left = rng.integers(300), rng.integers(500)
            cut = photo[top : top + rng.integers(60, 120), left : left + rng.integers(60, 120)]
            (directory / f"{i}.{suffix}").write_bytes(encode(cut, form))
        (directory / "notes.txt").write_text("no image")
    return root


@pytest.fixture(scope="session")
def tfds_dir(tmp_path_factory) -> Path:
    """A TFDS data directory with the digits in it."""
    from vit_jax.data.sources.digits import prepare

    root = tmp_path_factory.mktemp("tfds")
    prepare(root)
    return root
