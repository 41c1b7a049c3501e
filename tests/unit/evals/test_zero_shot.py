# SPDX-License-Identifier: Apache-2.0
"""Prompts of classes, and the class whose prompts lie nearest."""

from pathlib import Path

import numpy as np
import pytest

from vit_jax.data import classes
from vit_jax.errors import UserError
from vit_jax.evals import zero_shot


def test_templates_are_a_set_a_file_or_one(tmp_path: Path) -> None:
    counts = {name: len(zero_shot.templates(name)) for name in zero_shot.sets()}
    assert counts == {"openai80": 80, "openai7": 7, "photo": 1, "plain": 1}
    assert zero_shot.templates("plain") == ("{}",)
    assert zero_shot.templates("a sketch of {}") == ("a sketch of {}",)
    file = tmp_path / "own.txt"
    file.write_text("# mine\na {}.\n\n the {} \n")
    assert zero_shot.templates(str(file)) == ("a {}.", "the {}")


def test_templates_that_are_none(tmp_path: Path, subtests: pytest.Subtests) -> None:
    empty, broken = tmp_path / "empty.txt", tmp_path / "broken.txt"
    empty.write_text("# none\n")
    broken.write_text("a {}\na {} and {}\n")
    cases = {
        "openai81": r"^unknown templates: 'openai81'; did you mean 'openai80' or",
        "a photo": r"'a photo' must have \{\} once",
        "a {name} {}": r"must have \{\} once",
        str(empty): r"holds no template$",
        str(broken): r"'a \{\} and \{\}' must have \{\} once",
    }
    for which, message in cases.items():
        with subtests.test(which):
            with pytest.raises(UserError, match=message) as caught:
                zero_shot.templates(which)
            assert caught.value.field == "templates"


def test_classes_are_called_by_their_first_name() -> None:
    assert zero_shot.names(["red_fox", "tench, Tinca tinca"]) == (("red fox",), ("tench",))
    imagenet = zero_shot.names(list(classes.names_by_synset().values()))
    assert (len(imagenet), len(set(imagenet))) == (1000, 998)  # two names come twice, as published
    assert imagenet[134] == ("crane bird",)  # WordNet calls two classes "crane"
    assert imagenet[517] == ("construction crane",)
    with pytest.raises(UserError, match=r"^the class ',' has no name, and a prompt needs one$"):
        zero_shot.names(["a", ","])
    with pytest.raises(UserError, match=r"^two classes are called 'a b', "):
        zero_shot.names(["a_b", "a b, other"])
    with pytest.raises(UserError, match=r"^two classes are called 'a', "):
        zero_shot.names(["a", "a"])


def test_classes_are_called_as_a_file_says(tmp_path: Path, subtests: pytest.Subtests) -> None:
    file = tmp_path / "names.json"
    file.write_text('{"cat": ["cat", " tabby "], "red_fox": "fox, red", "else": []}')
    assert zero_shot.names(["red_fox", "cat"], str(file)) == (("fox, red",), ("cat", "tabby"))
    cases = {
        '["cat"]': r"^names=.* holds no object of JSON",
        '{"cat": "cat"}': r"has no name of the class 'dog'$",
        '{"cat": "cat", "dog": 1}': r"'dog' must have a name, or a list of names$",
        '{"cat": "cat", "dog": ["dog", 1]}': r"'dog' must have a name, or a list of names$",
        '{"cat": "cat", "dog": ["dog", ""]}': r"^the class 'dog' has no name",
        '{"cat": "cat", "dog": []}': r"^the class 'dog' has no name",
        '{"cat": ["a", "b"], "dog": ["b", "a"]}': r"^two classes are called 'b', ",
    }
    for text, message in cases.items():
        file.write_text(text)
        with subtests.test(text), pytest.raises(UserError, match=message):
            zero_shot.names(["cat", "dog"], str(file))
    with pytest.raises(UserError, match=r"^cannot read names=.*none\.json"):
        zero_shot.names(["cat"], str(tmp_path / "none.json"))


def test_a_class_is_the_mean_of_the_unit_vectors_of_its_prompts() -> None:
    vectors = {"a x": (1, 0), "the x": (0, 1), "a y": (0, 1), "the y": (0, 1)}

    def embed(texts: list[str]) -> np.ndarray:
        return np.array([vectors[text] for text in texts])

    found = zero_shot.class_vectors(embed, [("x",), ("y",)], ["a {}", "the {}"])
    np.testing.assert_allclose(found, [[0.5**0.5, 0.5**0.5], [0, 1]], atol=1e-7)
    both = zero_shot.class_vectors(embed, [("x", "y")], ["a {}"])  # called two things
    np.testing.assert_allclose(both, [[0.5**0.5, 0.5**0.5]], atol=1e-7)
    thrice = zero_shot.class_vectors(embed, [("x", "x", "y")], ["a {}"])
    np.testing.assert_allclose(thrice, [[2 / 5**0.5, 1 / 5**0.5]], atol=1e-7)
    images = np.array([[1, 0.1], [0, 1]], np.float32)
    near = zero_shot.ranked(images, found)
    assert near.tolist() == [[0, 1], [1, 0]]
    assert zero_shot.scores(near, np.array([0, 0])) == {"top1": 0.5, "top5": 1, "num_examples": 2}


def test_equal_classes_come_by_id_and_images_without_a_label_are_left_out() -> None:
    same = np.ones((7, 2), np.float32)
    near = zero_shot.ranked(same[:3], same)
    assert near.tolist() == [[0, 1, 2, 3, 4]] * 3
    found = zero_shot.scores(near, np.array([0, 5, -1]))
    assert found == {"top1": 0.5, "top5": 0.5, "num_examples": 2}
    several = np.zeros((3, 7), int)
    several[0, [0, 6]] = several[1, [2, 6]] = 1
    found = zero_shot.scores(near, several)
    assert found == {"top1": 0.5, "top5": 1, "num_examples": 2}
    with pytest.raises(UserError, match=r"^no image has a label to compare with$"):
        zero_shot.scores(near, np.full(3, -1))
