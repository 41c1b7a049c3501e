# SPDX-License-Identifier: Apache-2.0
"""Labels mean the model's classes, or those of a test set: ImageNet-V2, -A, -R, ObjectNet."""

import io
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vit_jax.data import classes, open_source
from vit_jax.data.several import Numbers
from vit_jax.data.sources.base import Labelled
from vit_jax.errors import UserError
from vit_jax.evals.classes import align, grouped, joined, rule

SYNSETS = tuple(classes.names_by_synset())
WORDS = tuple(classes.names_by_synset().values())


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


class Measured(Labelled):
    """A source of two numbers an image."""

    name, class_names = "scales", ("mass [kg]", "age")

    def __init__(self) -> None:
        self.take_targets(Numbers(np.array([[70, 30], [np.nan, 4]], np.float32)))

    def __len__(self):
        return 2

    def read(self, index):
        return self._target(index)

    def example_id(self, index):
        return str(index)

    def digest(self):
        return ""


def test_numbers_in_another_order_are_found_by_name() -> None:
    source: Any = align(Measured(), ("age", "height", "mass [kg]"))
    found = [source.read(k)["value"] for k in range(2)]
    np.testing.assert_array_equal(found, [[30, np.nan, 70], [4, np.nan, np.nan]])
    with pytest.raises(UserError, match=r"the number 'mass \[kg\]', .*with their units$"):
        align(Measured(), ("age", "mass [g]"))


@pytest.mark.parametrize("names", [(), ("sea", "sky")])
def test_images_without_a_label_have_none_afterwards(names):
    tags: Any = Tags()
    tags.class_names, tags.multi_label, tags.is_remote = names, False, True
    tags.labels = np.array([-1, *range(len(names))], np.int32)
    source: Any = align(tags, ("sky", "sea", "sun"))
    assert source.labels.tolist() == [-1, 1, 0][: len(names) + 1]
    assert source.is_remote  # so that many reads are in flight


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


class Listed(Labelled):
    """A source that lists one example of each class, last first."""

    def __init__(self, name, class_names):
        self.name, self.class_names = name, tuple(class_names)
        self.labels = np.arange(len(class_names), dtype=np.int32)[::-1]

    def __len__(self):
        return len(self.labels)

    def read(self, index):
        return {"image": b"", "label": int(self.labels[index])}

    def example_id(self, index):
        return f"{self.name} {index}"

    def digest(self):
        return ""


def test_a_test_set_of_200_classes_is_scored_among_them():
    adversarial = tuple(classes.groups_of("imagenet_a"))
    assert len(adversarial) == len(classes.groups_of("imagenet_r")) == 200
    assert len({*adversarial, *classes.groups_of("imagenet_r")}) == 314  # 86 are in both
    of_folders, groups = rule(Listed("folder:a[whole]", adversarial), WORDS)
    assert of_folders.class_names[0] == WORDS[6] == "stingray"
    assert (groups[0], len(groups)) == ((6,), 200)
    assert [of_folders.read(i)["label"] for i in (0, 199)] == [199, 0]
    # TFDS's has the names of all 1,000.
    of_records, same = rule(Listed("imagenet_a[test]", SYNSETS), WORDS)
    assert (of_records.class_names, same) == (of_folders.class_names, groups)
    assert of_records.read(999 - 6)["label"] == 0
    assert of_records.read(999 - 7)["label"] == -1  # is refused when it is scored
    logits = np.zeros((1, 1000), np.float32)
    logits[0, [0, 6, 998]] = 3, 2, 1  # the tench is no class of the set
    predict = grouped(lambda variables, batch: logits, groups)
    assert predict({}, {}).shape == (1, 200)
    assert int(predict({}, {}).argmax()) == 0
    for name in ("imagenet_sketch[test]", "imagenet_v2/matched-frequency[test]"):
        assert rule(Listed(name, SYNSETS), WORDS)[1] == ()
    some = Listed("folder:some[test]", adversarial[:100])  # a set of one's own: all may be guessed
    assert rule(some, WORDS)[1] == ()


def test_objectnets_objects_are_what_any_of_their_classes_is():
    mapped = classes.groups_of("objectnet")
    assert len(mapped) == 113
    assert sum(map(len, mapped.values())) == 125
    assert [WORDS[k].split(",")[0] for k in mapped["chair"]] == [
        "barber chair",
        "folding chair",
        "rocking chair",
    ]
    names = sorted([*mapped, "air_freshener", "zipper"])
    source, groups = rule(Listed("folder:objectnet[whole]", names), WORDS)
    assert (len(source), source.class_names, groups) == (113, tuple(mapped), tuple(mapped.values()))
    assert source.read(0)["label"] == 112  # of the wok: the first example, of zippers, is left out
    chair = list(mapped).index("chair")
    logits = np.zeros((2, 1000), np.float32)
    logits[0, list(mapped["chair"])] = 1, 7, 2
    logits[1, mapped["banana"]] = 1
    found = np.asarray(grouped(lambda variables, batch: logits, groups)({}, {}))
    assert (found[0, chair], found[1, chair]) == (7, 0)
    assert found.argmax(axis=1).tolist() == [chair, list(mapped).index("banana")]
    predict = grouped(len, ())
    assert predict is len


def test_two_splits_are_numbered_alike_by_name() -> None:
    train: Any = Tags()
    test: Any = Tags()
    train.class_names, test.class_names = ("sea", "sky", "sun"), ("sun", "fog", "sea")
    for each, labels in ((train, [0, 1, 2, -1]), (test, [0, 1, 2, -1])):
        each.multi_label, each.labels = False, np.array(labels, np.int32)
    first, second = joined(train, test)
    assert first.class_names == second.class_names == ("sea", "sky", "sun", "fog")
    assert first.labels.tolist() == [0, 1, 2, -1]
    assert second.labels.tolist() == [2, 3, 0, -1]
    assert joined(train, train) == (train, train)
