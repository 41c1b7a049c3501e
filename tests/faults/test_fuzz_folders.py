# SPDX-License-Identifier: Apache-2.0
"""Whatever lies in a folder, it opens and names its files, or is refused in one line."""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.faults.broken_files import PHOTO, encode
from vit_jax.data.sources.folders import open_folder
from vit_jax.errors import UserError

PNG = encode(Image.fromarray(PHOTO[:8, :8]), "PNG")
LINK, LOOP, PIPE = "link", "loop", "pipe"

ODD = ("two\nlines", "[x]{y}", "%s {0}", "\udcff", "~", "e\u0301", "\u00e9")
TEXT = st.text(st.characters(exclude_characters="/\0", codec="utf-8"), min_size=1, max_size=6)
NAMES = st.one_of(
    st.sampled_from(("cat", "Cat", "CAT", "dog", ".hidden", *ODD)),
    st.sampled_from(("a.jpg", "a.png", "A.JPG", "b.webp", "x.png.txt", *(f"{x}.png" for x in ODD))),
    TEXT,
    TEXT.map("{}.png".format),
)
LEAF = st.sampled_from([PNG, b"", b"no image", LINK, LOOP, PIPE])
CLASS = st.dictionaries(NAMES, st.one_of(st.just(PNG), LEAF), max_size=4)
DEEP = st.dictionaries(NAMES, st.one_of(CLASS, st.just(PNG)), max_size=2)
SPLIT = st.one_of(st.dictionaries(NAMES, st.one_of(CLASS, CLASS, LEAF, DEEP), max_size=3), LEAF)
TOP = st.one_of(st.sampled_from(["train", "val", "test"]), NAMES)
TREE = st.dictionaries(TOP, SPLIT, max_size=4)
SPLITS = st.one_of(
    st.sampled_from(
        ["train", "train", "val", "train+val", "train[:50%]", "train[1:]", "validation"]
    ),
    st.sampled_from(["", "no", "train[x]", "train[::2]", "train[5:1]", "all", "train[:-1]"]),
    st.text(max_size=8),
)


def build(path: Path, tree) -> None:
    for name, what in tree.items():
        here = path / name
        try:
            if isinstance(what, dict):
                here.mkdir()
                build(here, what)
            elif what is LINK:
                here.symlink_to("nowhere")
            elif what is LOOP:
                here.symlink_to(name)
            elif what is PIPE:
                os.mkfifo(here)
            else:
                here.write_bytes(what)
        except (OSError, ValueError):  # "." and the like
            pass


def check(path: str, split: str) -> None:
    source = None
    try:
        source = open_folder(path, split)
    except UserError as error:
        line = str(error)
    else:
        line = source.name
    assert line.isprintable()
    if source is None:
        return
    assert len(source) > 0
    for index in range(len(source)):
        assert source.example_id(index).isprintable()
        try:
            example = source.read(index)
            data, label = example["image"], example["label"]
        except (OSError, ValueError):
            continue
        assert isinstance(data, bytes)
        assert (label == -1 and not source.labels[index] >= 0) or 0 <= label < source.num_classes
    # Nothing is lost: what lies there is used, or left out with a reason.
    counted = source.account
    assert counted is not None
    assert counted.found == sum(len(files) for _, _, files in os.walk(path))
    assert counted.line().isprintable()
    assert all(note.isprintable() for note in counted.notes)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(tree=TREE, split=SPLITS)
@example(tree={"train": {"cat": {"pipe.jpg": PIPE}}}, split="train")
def test_a_tree_of_any_names_opens_or_is_refused_in_one_line(tree, split):
    with tempfile.TemporaryDirectory() as root:
        build(Path(root), tree)
        check(root, split)


@settings(max_examples=100, deadline=None)
@given(
    path=st.one_of(st.text(max_size=12), st.sampled_from(["~no_such_user", "a\0b", "/dev/null"]))
)
@example(path="x" * 5000)
def test_a_path_that_is_none_is_refused_in_one_line(path, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.getbasetemp())
        check(path, "train")
