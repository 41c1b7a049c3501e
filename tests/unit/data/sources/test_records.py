# SPDX-License-Identifier: Apache-2.0
import io
import pickle
import shutil
import time

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tests.refusals import refused_as, refused_by
from tests.unit.data.conftest import encode
from vit_jax.data import open_source
from vit_jax.data.images.decode import decode
from vit_jax.data.sources import records
from vit_jax.errors import UserError
from vit_jax.storage import remote


class Tagged(tfds.core.GeneratorBasedBuilder):
    """Multi-label photographs with a second image and a second label beside them."""

    name = "tagged"
    VERSION = tfds.core.Version("2.1.0")
    code_path = None
    photo: np.ndarray

    def _info(self):
        features = {
            "photo": tfds.features.Image(encoding_format="jpeg"),
            "depth": tfds.features.Image(shape=(None, None, 1), encoding_format="png"),
            "tags": tfds.features.Sequence(tfds.features.ClassLabel(names=["sky", "sea", "sun"])),
            "place": tfds.features.ClassLabel(num_classes=5),
            "file_name": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("photo", "tags"),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, tags in enumerate([[0], [0, 2], [], [1, 2]]):
            cut = self.photo[i : i + 40, :50]
            yield (
                i,
                {
                    "photo": io.BytesIO(encode(cut, "JPEG", quality=95)),
                    "depth": io.BytesIO(encode(cut[..., 0], "PNG")),
                    "tags": tags,
                    "place": i,
                    "file_name": f"{i}.jpg",
                },
            )


def test_a_version_that_is_gone_from_the_bucket(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    files = ("features.json", "dataset_info.json", "x.array_record-00000-of-00001")
    listed = [
        remote.FileInfo(f"gs://b/scans/{version}/{name}", 2, "1")
        for version in ("1.0.0", "2.0.0")
        for name in files
    ]
    asked = []
    monkeypatch.setattr(remote, "find", lambda pattern: asked.append(pattern) or listed)
    monkeypatch.setattr(remote, "read", lambda _: b'{"fileFormat": "array_record"}')
    assert records._find_remote("scans:1.0.0", "gs://b")[0].name == "1.0.0"
    for version in ("2.0.0", "1.0.0"):
        directory, found = records._find_remote("scans", "gs://b")
        assert (directory.name, {*found}) == (version, {*files})
        del listed[3:]
    assert {*asked} == {"gs://b/scans/**"}  # not of all datasets there


@pytest.fixture(scope="module")
def tagged(tmp_path_factory, photo):
    root = tmp_path_factory.mktemp("tagged")
    Tagged.photo = photo
    Tagged(data_dir=root, file_format="array_record").download_and_prepare()
    return root


def test_multi_label_records_give_multi_hot_rows_and_the_stored_bytes(tagged, photo):
    source = open_source("tagged", str(tagged), "train")
    assert source.multi_label
    assert source.class_names == ("sky", "sea", "sun")
    labels = [source.read(i)["label"] for i in range(4)]
    np.testing.assert_array_equal(labels, [[1, 0, 0], [1, 0, 1], [0, 0, 0], [0, 1, 1]])
    assert source.read(1)["image"] == encode(photo[1:41, :50], "JPEG", quality=95)


def test_a_source_survives_pickling(tagged, tfds_dir):
    for source in (
        open_source("tagged", str(tagged), "train", cache=True),
        open_source("digits", str(tfds_dir), "train[10:20]"),
    ):
        example = source.read(3)
        image, label = example["image"], example["label"]
        copy = pickle.loads(pickle.dumps(source))
        assert copy.read(3)["image"] == image
        np.testing.assert_array_equal(copy.read(3)["label"], label)
        assert (copy.name, copy.class_names, len(copy)) == (
            source.name,
            source.class_names,
            len(source),
        )


def test_versions_and_configs_are_found_on_disk(tagged, tmp_path):
    assert len(open_source("tagged:2.1.0", str(tagged))) == 4
    with pytest.raises(UserError, match=r"unknown version .*did you mean '2\.1\.0'"):
        open_source("tagged:2.1.1", str(tagged))
    shutil.copytree(tagged / "tagged" / "2.1.0", tmp_path / "tagged" / "small" / "2.1.0")
    assert len(open_source("tagged", str(tmp_path))) == 4
    assert len(open_source("tagged/small", str(tmp_path))) == 4
    with pytest.raises(UserError, match=r"unknown config .*'small'"):
        open_source("tagged/smal", str(tmp_path))
    shutil.copytree(tmp_path / "tagged" / "small", tmp_path / "tagged" / "large")
    with pytest.raises(UserError, match=r"several configs.*large, small"):
        open_source("tagged", str(tmp_path))


def test_a_missing_dataset_is_told_at_once_and_in_one_line(tagged):
    start = time.perf_counter()
    with pytest.raises(
        UserError, match=r"no dataset 'imagenet2012' in .*there: .*tagged"
    ) as caught:
        open_source("imagenet2012", str(tagged))
    assert time.perf_counter() - start < 1
    with pytest.raises(UserError, match="no dataset 'cifar10' in"):
        open_source("cifar10", str(tagged))
    assert "\n" not in str(caught.value)


def test_slices_are_those_of_tfds(tfds_dir):
    assert len(open_source("digits", str(tfds_dir), "train[:99%]")) == round(1437 * 0.99)
    assert len(open_source("digits", str(tfds_dir), "train[1293:]+test")) == 144 + 360
    first = open_source("digits", str(tfds_dir), "train[1293:]").read(0)
    assert first == open_source("digits", str(tfds_dir), "train").read(1293)
    assert open_source("digits", str(tfds_dir), "train[7:9]").example_id(1).endswith("record 1")


@pytest.mark.parametrize(
    "split", ["trian", "train[:x]", "train[:0]", "train[1000:500]", "train[1000:500]+test", ""]
)
def test_a_wrong_split_is_one_line(tfds_dir, split):
    with refused_by("data.sources.partition.absolute_slices") as caught:
        open_source("digits", str(tfds_dir), split)
    assert "\n" not in str(caught.value)


def test_a_dataset_without_labels_says_so(tmp_path, photo):
    class Unlabelled(Tagged):
        name = "unlabelled"

        def _info(self):
            return tfds.core.DatasetInfo(
                builder=self,
                features=tfds.features.FeaturesDict({"photo": tfds.features.Image()}),
            )

        def _generate_examples(self):
            yield 0, {"photo": io.BytesIO(encode(photo[:9, :9], "PNG"))}

    Unlabelled(data_dir=tmp_path, file_format="array_record").download_and_prepare()
    with pytest.raises(UserError, match="unlabelled has no features of type class label"):
        open_source("unlabelled", str(tmp_path))


def test_the_cache_reads_each_example_once(tfds_dir):
    source = open_source("digits", str(tfds_dir), "test", cache=True)
    assert source.read(5)["image"] is source.read(5)["image"]
    assert decode(source.read(5)["image"], 1).shape == (8, 8, 1)


@pytest.mark.parametrize("name", ["digits", "tagged"])
@pytest.mark.parametrize(
    "file, text",
    [
        ("*train.array_record*", None),
        ("features.json", None),
        ("features.json", "{"),
        ("dataset_info.json", "{"),
        ("dataset_info.json", "[]"),
        ("*train.array_record*", "cut"),
    ],
)
def test_a_damaged_dataset_is_one_line_with_its_directory(
    tagged, tfds_dir, tmp_path, name, file, text
):
    shutil.copytree({"digits": tfds_dir, "tagged": tagged}[name], tmp_path, dirs_exist_ok=True)
    (directory,) = (tmp_path / name).iterdir()
    (damaged,) = directory.glob(file)
    damaged.unlink()
    if text:
        damaged.write_text(text)
    with pytest.raises(
        UserError, match=f"{directory} .*move .* away and prepare it again"
    ) as caught:
        open_source(name, str(tmp_path)).read(0)
    assert "\n" not in str(caught.value)
    if text != "cut":  # told before training starts
        with pytest.raises(UserError):
            open_source(name, str(tmp_path))


@pytest.mark.parametrize(
    "name, told",
    [
        ("", r"^data\.name is empty; give 'digits', a prepared TFDS dataset or folder:DIR$"),
        ("folder:", ("data.sources.folders.open_folder", "data.name")),
    ],
)
def test_an_empty_name_is_one_line(tmp_path, name, told):
    with refused_as(told):
        open_source(name, str(tmp_path))
