# SPDX-License-Identifier: Apache-2.0
"""What is kept of a run's data tells whether it is the same: images and labels, byte for byte."""

from pathlib import Path
from typing import Any

from tests.photos import tiny
from vit_jax.data import open_source
from vit_jax.train import data_identity


def described(folder: Path, *labels: int, images: str = "abcd") -> dict[str, Any]:
    folder.mkdir()
    for i, content in enumerate(images):
        (folder / f"{i}.jpg").write_bytes(tiny(content))
    rows = [f"{i}.jpg,{label}" for i, label in enumerate(labels)]
    (folder / "mine.csv").write_text("\n".join(["path,label", *rows, ""]))
    source = open_source(f"{folder}/mine.csv", split="whole")
    (found,) = data_identity.describe(source, {}).values()
    return found


def test_a_sample_is_of_the_images_and_their_labels(tmp_path: Path) -> None:
    one = described(tmp_path / "one", 0, 1, 0, 1)
    assert one["examples"] == 4
    assert described(tmp_path / "same", 0, 1, 0, 1)["sample"] == one["sample"]
    labels = described(tmp_path / "labels", 1, 1, 0, 1)["sample"]
    images = described(tmp_path / "images", 0, 1, 0, 1, images="xbcd")["sample"]
    for other in (labels, images):
        assert len(other) == len(one["sample"])
        assert other != one["sample"]
