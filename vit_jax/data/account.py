# SPDX-License-Identifier: Apache-2.0
"""What a dataset holds and what of it is used: found = used + left out, with a reason for each."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from vit_jax.errors import UserError, setting, shown
from vit_jax.process import waiting

SYSTEM = "hidden or of the system"  # the one reason that needs no repair: .DS_Store, Thumbs.db
_FIRST = 3  # names that a message gives for each reason


class Said(str):
    """A line among the notes on a dataset that says how it is read, and is no finding."""


class LeftOut(NamedTuple):
    """Files or records of a dataset that are not used, for one reason."""

    count: int
    first: tuple[str, ...]  # some of their names, as messages show them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """The counts of a whole dataset, with all its splits.

    Attributes:
        unit: what is counted, "files", "rows" or "records".
        num_classes: how many classes its labels have.
        used: the number of examples of each split.
        left_out: what is not used, by reason; a reason follows a number: "not an image".
        notes: other findings, one line each, such as copies that lie in two splits.
        said: how the data are read, one line each; nothing of it needs a repair.
        what: what there is to learn, in place of the number of classes.
    """

    unit: str
    num_classes: int
    used: Mapping[str, int]
    left_out: Mapping[str, LeftOut] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    what: str = ""

    @property
    def found(self) -> int:
        """The number of all files or records, used or left out."""
        return sum(self.used.values()) + self.num_left_out

    @property
    def num_left_out(self) -> int:
        return sum(each.count for each in self.left_out.values())

    @property
    def lost(self) -> bool:
        """Whether anything is left out besides files of the operating system."""
        return bool(self.left_out.keys() - {SYSTEM})

    def line(self) -> str:
        """Return a summary: "9 classes in 3 splits (...); 12 of 1,512 files left out: ..."."""
        splits = ", ".join(f"{name} {count:,}" for name, count in self.used.items())
        many = f"{len(self.used)} splits" if len(self.used) != 1 else "1 split"
        kinds = f"{self.num_classes:,} classes" if self.num_classes != 1 else "1 class"
        text = f"{self.what or kinds} in {many} ({splits})"
        if not self.left_out:
            return f"{text}; all {self.found:,} {self.unit} used"
        return f"{text}; {self.why_left_out()}"

    def why_left_out(self) -> str:
        """Return the reasons with their counts: "12 of 1,512 files left out: 8 empty (...)"."""
        why = ", ".join(_reason(reason, each) for reason, each in self.left_out.items())
        return f"{self.num_left_out:,} of {self.found:,} {self.unit} left out: {why}"

    def to_json(self) -> dict[str, Any]:
        """Return the account as plain JSON values."""
        left_out = {why: [each.count, list(each.first)] for why, each in self.left_out.items()}
        tree = {**dataclasses.asdict(self), "left_out": left_out, "notes": list(self.notes)}
        # Runs of before have neither.
        tree = {key: x for key, x in tree.items() if x or key not in ("what", "said")}
        return {**tree, **({"said": list(self.said)} if self.said else {})}


def left_out(found: Iterable[tuple[str, str]]) -> dict[str, LeftOut]:
    """Count (reason, name) pairs by their reasons, the commonest first."""
    names: dict[str, list[str]] = {}
    for reason, name in found:
        names.setdefault(reason, []).append(name)
    ordered = sorted(names.items(), key=lambda item: (-len(item[1]), item[0]))
    return {
        why: LeftOut(len(each), tuple(map(shown, sorted(each)[:_FIRST]))) for why, each in ordered
    }


def dataset_of(name: str) -> str:
    """Return the dataset in a source's name: "birds" of "birds[train]" or "birds[train[:9%]]"."""
    depth = 0
    for at in range(len(name) - 1, 0, -1):  # from the end: a folder's name may have brackets too
        depth += (name[at] == "]") - (name[at] == "[")
        if name[at] == "[" and not depth:
            return name[:at]
    return name


def tell(name: str, account: Account | None, *, strict: bool = False) -> None:
    """Print a dataset's account on process 0: a line, and a warning for each of its notes.

    Args:
        name: the name of the dataset or of one of its sources.
        account: None if nothing was counted.
        strict: as `DataConfig.strict`: refuse a dataset with anything left out or noted.

    Raises UserError: `strict`, and something is left out or noted.
    """
    if account is None:
        return
    where = dataset_of(name)
    if strict and (account.lost or account.notes):
        why = [account.why_left_out()] if account.lost else []
        advice = f"mend that, or set {setting('config.data.strict=false')}"
        raise UserError(
            f"data.strict: {where}: {'; '.join([*why, *account.notes])}; {advice}",
            field="data.strict",
        )
    if waiting.is_first():
        print(f"{where}: {account.line()}", flush=True)
        for line in account.said:
            print(f"{where}: {line}", flush=True)
        for note in account.notes:
            print(f"warning: {where}: {note}", flush=True)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield the differences between two `to_json` trees, one line each; none for an empty tree."""
    if not before or not now:
        return
    for key in before["used"].keys() | now["used"].keys():
        was, here = before["used"].get(key, 0), now["used"].get(key, 0)
        if was != here:
            yield f"{key}: {was:,} {now['unit']} before, {here:,} now"
    for why in before["left_out"].keys() | now["left_out"].keys():
        was, here = (tree["left_out"].get(why, [0])[0] for tree in (before, now))
        if was != here:
            yield f"{why}: {was:,} {now['unit']} left out before, {here:,} now"


def _reason(reason: str, each: LeftOut) -> str:
    more = ", ..." if each.count > len(each.first) else ""
    return f"{each.count:,} {reason} ({', '.join(each.first)}{more})"
