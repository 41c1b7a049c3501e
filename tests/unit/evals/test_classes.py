# SPDX-License-Identifier: Apache-2.0
"""Labels mean the model's classes: ImageNet-ReaL's records, ImageNet-V2's folders, subsets."""

import io

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import imagenet, open_source
from vit_jax.data.sources import Labelled
from vit_jax.errors import UserError
from vit_jax.evals.classes import align

SYNSETS = tuple(imagenet.names_by_synset())
WORDS = tuple(imagenet.names_by_synset().values())


def png(level):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), level, np.uint8)).save(file, "PNG")
    file.seek(0)
    return file


class Tags(Labelled):
    """A source with several labels per image."""

    name, class_names, multi_label, labels = "tags", ("sky", "sea", "sun"), True, None

    def __len__(self):
        return 1

    def read(self, index):
        return {"image": b"", "label": np.array([1, 1, 0], np.uint8)}

    def example_id(self, index):
        return "tag"

    def digest(self):
        return ""


def test_several_labels_in_another_order():
    source = align(Tags(), ("sun", "rain", "sky", "sea"))
    assert source.multi_label
    np.testing.assert_array_equal(source.read(0)["label"], [0, 0, 1, 1])


@pytest.fixture
def folder(tmp_path):
    """Make DIR/test/<name>/0.png of brightness i, for the i-th name."""

    def make(names):
        for i, name in enumerate(names):
            file = tmp_path / "test" / name / "0.png"
            file.parent.mkdir(parents=True)
            file.write_bytes(png(i).read())
        return open_source(f"folder:{tmp_path}", split="test")

    return make


def labels(source):
    """Return each image's label by its brightness, and check what is known without reading."""
    examples = [source.read(i) for i in range(len(source))]
    assert source.labels.tolist() == [example["label"] for example in examples]
    found = {
        int(np.array(Image.open(io.BytesIO(x["image"])))[0, 0, 0]): x["label"] for x in examples
    }
    return [found[i] for i in sorted(found)]


def test_numbers_are_no_ids_of_other_classes(folder):
    source = folder(["0", "1"])
    with pytest.raises(UserError, match=r"class '0', which is none of the model's 2 \(cat, dog\)"):
        align(source, ("cat", "dog"))
    assert align(source, ("0", "1")) is source
    assert labels(align(source, ("1", "7", "0"))) == [2, 0]


def test_synsets_and_words_name_the_same(folder):
    crane = WORDS.index("crane")
    assert WORDS.count("crane") == 2  # the bird and the machine
    source = folder([SYNSETS[5], SYNSETS[crane], SYNSETS[999]])
    assert labels(align(source, WORDS)) == [5, crane, 999]
    some = (WORDS[999], WORDS[7], WORDS[crane], WORDS[5])  # the classes of a run on four of them
    assert labels(align(source, some)) == [3, 2, 0]


def test_a_name_of_two_classes_is_refused(folder):
    with pytest.raises(UserError, match="class 'crane'"):
        align(folder(["crane"]), WORDS)


def test_a_class_that_the_model_lacks_is_one_line(folder):
    source = folder(["cat", "owl"])
    with pytest.raises(UserError, match=r"'owl'.*model's 3 \(cat, dog, emu\).*--classes=FILE") as e:
        align(source, ("cat", "dog", "emu"))
    assert "\n" not in str(e.value)
    with pytest.raises(UserError, match=r"none of the model's 21843 \(class 0, class 1, class 2, "):
        align(source, tuple(f"class {k}" for k in range(21843)))
