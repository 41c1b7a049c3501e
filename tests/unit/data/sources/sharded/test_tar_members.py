# SPDX-License-Identifier: Apache-2.0
"""Every member of a tar is part of an example, or left out for a reason."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.refusals import refused_by
from tests.shards import write_tar
from vit_jax.data import open_source
from vit_jax.errors import DataError


def opened(folder: Path, files: dict[str, bytes], options: str = "") -> Any:
    return open_source(f"tar:{write_tar(folder / '0.tar', files)}{options}", split="whole")


def test_what_is_left_out_has_a_reason(tmp_path: Path) -> None:
    files = {
        **{"a.jpg": b"x", "a.cls": b"0", "a.txt": b"a caption", "a.seg.png": b"x"},
        **{"my.photo.jpg": b"x", "b.png": b"x", "b.jpg": b"x", "readme": b"x", "notes.txt": b"x"},
        **{".hidden.jpg": b"x", "c.json": b"{}", "d/e.cls": b"1"},
    }
    account = opened(tmp_path, files).account
    reasons = {why: (each.count, each.first) for why, each in account.left_out.items()}
    assert reasons == {
        "of keys without an image": (2, ("c.json", "d/e.cls")),
        "another image of its key": (1, ("b.png",)),
        "hidden": (1, (".hidden.jpg",)),
        "not an image": (1, ("notes.txt",)),
        "with a dot in front of the suffix": (1, ("my.photo.jpg",)),
        "without a suffix": (1, ("readme",)),
    }
    assert account.found == len(files) - len({"a.cls", "a.txt", "a.seg.png"})
    again = opened(tmp_path, files).account  # from the index
    assert again == account
    masks = opened(tmp_path, files, "?image=seg.png").account
    assert masks.left_out["another image of its key"].first == ("a.jpg",)


def test_a_label_of_another_type_is_refused_as_that(tmp_path: Path) -> None:
    for label, why in (
        (b'{"a": 1}', "'a.json': the label is .*, a dict"),
        (b"0.25", "'a.json': the label is 0.25, no whole number"),
        (b"-7", "'a.json': the label is '-7'; there is none below 0"),
    ):
        files = {"a.jpg": b"x", "a.json": b'{"label": %b}' % label}
        with pytest.raises(DataError, match=why) as caught:
            opened(tmp_path, files)
        assert "?label=none" in str(caught.value)
        assert opened(tmp_path, files, "?label=none").labels.tolist() == [-1]
    for label, name in ((b"true", "true"), (b"3.0", "3"), (b'" a  b"', "a b")):
        source = opened(tmp_path, {"a.jpg": b"x", "a.json": b'{"label": %b}' % label})
        assert source.class_names[source.labels[0]] == name
    for label in (b"null", b'""', b"-1", b"NaN"):
        source = opened(tmp_path, {"a.jpg": b"x", "a.json": b'{"label": %b}' % label})
        assert source.labels.tolist() == [-1]
    with pytest.raises(DataError, match=r"'a.json' is no JSON"):  # too deep to be read
        opened(tmp_path, {"a.jpg": b"x", "a.json": b'{"label": ' + b"[" * 100_000})
    with refused_by("data.sources.sharded.shards.class_ids", kind=DataError) as caught:
        opened(tmp_path, {"a.jpg": b"x", "a.cls": b"caf\xe9"})
    assert "0.tar/a.jpg: the label b'caf" in str(caught.value)


def test_labels_of_a_key_that_disagree_need_a_choice(tmp_path: Path) -> None:
    def files(*labels: tuple[bytes, bytes]) -> dict[str, bytes]:
        return {
            f"{i}.{end}": x
            for i, pair in enumerate(labels)
            for end, x in (("jpg", b"x"), ("cls", pair[0]), ("json", pair[1]))
        }

    for of_json in (b'{"class": "ant"}', b'{"label": 0, "class": "ant"}', b'{"label": [3]}', b"{"):
        assert len(opened(tmp_path, files((b"0", of_json)))) == 1
    for other, why in (
        (
            [(b"a", b'{"label": "b"}')],
            "labels disagree: '0' has 'a', and 'b' by 'label' in its JSON",
        ),
        ([(b"0", b'{"class": "a"}'), (b"0", b'{"class": "b"}')], "and 'b' by 'class' in its JSON"),
        ([(b"", b'{"label": "a", "class": "b"}')], "'0' has 'a', and 'b' by 'class' in its JSON"),
    ):
        with pytest.raises(DataError, match=why):
            opened(tmp_path, files(*other))
        assert len(opened(tmp_path, files(*other), "?label=none")) == len(other)
        assert len(opened(tmp_path, files(*other), "?rules=1")) == len(other)
    two = {"a.jpg": b"x", "a.cls": b"ant", "a.label": b"bee"}
    with pytest.raises(DataError, match=r"'a' has 'ant', and 'bee' by KEY\.label"):
        opened(tmp_path, two)


NAMES = st.builds(
    "{}{}{}".format,
    st.sampled_from(["", "d/", ".h/"]),
    st.sampled_from(["a", "b", "my.c", ".x", "read me"]),
    st.sampled_from(["", ".jpg", ".png", ".cls", ".json", ".txt", ".JPEG"]),
)


@settings(max_examples=40, deadline=None)
@given(st.sets(NAMES, min_size=1, max_size=8))
def test_members_are_used_or_left_out(tmp_path_factory, names: set[str]) -> None:
    names = {name for name in names if not name.endswith("/")}
    lowered = [name.lower() for name in names]
    if len({*lowered}) < len(lowered):
        return
    files = {name: b"{}" if name.endswith(".json") else b"1" for name in sorted(names)}
    folder = tmp_path_factory.mktemp("members")
    images = {name for name in names if _parts(name)[1] in ("jpg", "png", "jpeg")}
    if not images:
        with pytest.raises(DataError, match=r"no member is \.jpg, \.png, \.\.\.; there are"):
            opened(folder, files)
        return
    source = opened(folder, files)
    used = {source.example_id(i).rpartition(": ")[2].strip("'") for i in range(len(source))}
    keys = {_parts(name)[0] for name in images}  # an image that is left out takes its fields along
    fields = {name for name in names - images if _parts(name)[0] in keys}
    left = sum(each.count for each in source.account.left_out.values())
    assert (len(used), left) == (len(source), len(names) - len(used) - len(fields))


def _parts(name: str) -> tuple[str, str]:
    """Return the key of a member and its field; "" and "" of one without."""
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".")
    return (f"{folder}{slash}{stem}", field.lower()) if stem and dot else ("", "")
