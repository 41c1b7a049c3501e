# SPDX-License-Identifier: Apache-2.0
import json
import shutil

import pytest

from tests.unit.data.sources.test_records import Tagged
from vit_jax.data import open_source
from vit_jax.errors import UserError


@pytest.fixture(scope="module")
def tagged(tmp_path_factory, photo):
    root = tmp_path_factory.mktemp("tagged")
    Tagged.photo = photo
    Tagged(data_dir=root, file_format="array_record").download_and_prepare()
    return root


def test_a_dataset_in_another_format_is_told_apart(tagged, tmp_path):
    shutil.copytree(tagged, tmp_path, dirs_exist_ok=True)
    info = tmp_path / "tagged" / "2.1.0" / "dataset_info.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"fileFormat": "tfrecord"}))
    with pytest.raises(UserError, match=r"stored as tfrecord.*--file_format=array_record"):
        open_source("tagged", str(tmp_path))
    info.unlink()
    with pytest.raises(UserError, match="of a finished TFDS dataset"):
        open_source("tagged", str(tmp_path))
