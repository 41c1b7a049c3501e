# SPDX-License-Identifier: Apache-2.0
"""Metadata of TFDS name TFDS's own classes and the files beside them, or are refused."""

import json
from pathlib import Path

import pytest

from tests.refusals import refused_by
from vit_jax.data.sources import records
from vit_jax.errors import UserError

OWN = "tensorflow_datasets.core.features."
INFO = {"name": "x", "splits": [{"name": "train", "filepathTemplate": "{DATASET}-{SPLIT}"}]}


def write(folder: Path, features: object, info: object) -> None:
    (folder / "features.json").write_text(json.dumps(features))
    (folder / "dataset_info.json").write_text(json.dumps(info))


def feature(name: str, **content: object) -> dict[str, object]:
    return {"pythonClassName": f"{OWN}{name}", **content}


def test_usual_metadata_pass(tmp_path: Path) -> None:
    inside = {"image/file": feature("text_feature.Text"), "b": feature("image_feature.Image")}
    listed = {"featuresDict": {"features": inside}}
    write(tmp_path, feature("features_dict.FeaturesDict", **listed), INFO)
    records.check(tmp_path)


def test_other_classes_are_refused_however_deep(tmp_path: Path) -> None:
    for name in ("os.path", "evil.X", f"{OWN}evil.X", f"{OWN}image_feature", "X", f"{OWN}.X"):
        evil = {"pythonClassName": name}
        text = json.dumps({"type": name, "content": {}})
        for tree in (evil, {"a": [evil]}, {"json": text}, {"content": f" {text}"}, {"type": name}):
            write(tmp_path, tree, INFO)
            with pytest.raises(UserError, match="whose module would run"):
                records.check(tmp_path)


def test_names_of_other_folders_are_refused(tmp_path: Path) -> None:
    for name in ("../x", "/x", "a/b", "a\\b", "..", 3):
        for info in (
            {**INFO, "name": name},
            {**INFO, "config_name": name},
            {**INFO, "splits": [{"name": name}]},
            {**INFO, "splits": [{"filepath_template": name}]},
        ):
            write(tmp_path, {}, info)
            with pytest.raises(UserError, match="the name"):
                records.check(tmp_path)
    write(tmp_path, {"../x": {}}, INFO)
    with refused_by("storage.foreign.checked"):
        records.check(tmp_path)


def test_damage_is_told_as_such(tmp_path: Path) -> None:
    for splits in (3, [3], "train"):
        write(tmp_path, {}, {**INFO, "splits": splits})
        with pytest.raises(ValueError, match="no list of splits"):
            records.check(tmp_path)
    for text in ("", "[]", "[" * 100_000):
        (tmp_path / "features.json").write_text(text)
        with pytest.raises(ValueError):
            records.check(tmp_path)
