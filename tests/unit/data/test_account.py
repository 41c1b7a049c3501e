# SPDX-License-Identifier: Apache-2.0
"""What is found is what is used plus what is said."""

import dataclasses
import json

import jax
import pytest

from vit_jax.data.account import SYSTEM, Account, changes, dataset_of, left_out, tell
from vit_jax.errors import UserError


def _account() -> Account:
    reasons = [("not an image", f"{n}.txt") for n in range(8)] + [("unreadable", "\x1b.jpg")]
    return Account(
        unit="files", num_classes=9, used={"train": 1200, "val": 15}, left_out=left_out(reasons)
    )


def test_one_line_has_every_number_and_no_control_character() -> None:
    assert _account().line() == (
        "9 classes in 2 splits (train 1,200, val 15); 9 of 1,224 files left out: "
        "8 not an image (0.txt, 1.txt, 2.txt, ...), 1 unreadable ('\\x1b.jpg')"
    )
    whole = Account(unit="rows", num_classes=1, used={"train": 3})
    assert whole.line() == "1 class in 1 split (train 3); all 3 rows used"


def test_changes_are_told_by_what_they_are_of() -> None:
    before = json.loads(json.dumps(_account().to_json()))
    now = {**before, "used": {"train": 1199, "val": 15}, "left_out": {"unreadable": [2, []]}}
    assert sorted(changes(before, now)) == [
        "not an image: 8 files left out before, 0 now",
        "train: 1,200 files before, 1,199 now",
        "unreadable: 1 files left out before, 2 now",
    ]
    assert not list(changes(before, before))
    assert not list(changes({}, now))


def test_what_systems_leave_in_folders_is_said_and_is_no_loss() -> None:
    hidden = Account(
        unit="files", num_classes=2, used={"train": 4}, left_out=left_out([(SYSTEM, ".DS_Store")])
    )
    assert not hidden.lost
    assert ".DS_Store" in hidden.line()
    tell("x[train]", hidden, strict=True)
    with pytest.raises(UserError, match=r"data.strict: x: 9 of 1,224 files left out"):
        tell("x[train]", _account(), strict=True)
    with pytest.raises(UserError, match=r"two classes"):
        tell(
            "x[train]", dataclasses.replace(hidden, notes=("1 image has two classes",)), strict=True
        )


def test_process_0_says_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = dataclasses.replace(_account(), notes=("1 image has two classes",))
    for process, lines in (
        (0, [f"x: {found.line()}", "warning: x: 1 image has two classes"]),
        (1, []),
    ):
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        monkeypatch.setattr(jax, "process_index", lambda process=process: process)
        tell("x[train]", found, strict=False)
        assert capsys.readouterr().out.splitlines() == lines
    tell("x[train]", None, strict=True)


def test_a_dataset_is_named_without_its_split() -> None:
    for name, dataset in (
        ("birds[train]", "birds"),
        ("birds[train[:9%]]", "birds"),
        ("./pa[2]th[train[:9%]+val], split seed 3", "./pa[2]th"),
        ("birds", "birds"),
    ):
        assert dataset_of(name) == dataset
