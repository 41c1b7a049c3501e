# SPDX-License-Identifier: Apache-2.0
"""What a dataset holds and what of it is used: found = used + left out, with a reason for each."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from vit_jax.errors import UserError, setting, shown
from vit_jax.process import waiting

SYSTEM = "hidden or of the system"  # the one reason that is none to mend: .DS_Store, Thumbs.db
_FIRST = 3  # names of what is left out that a message gives, of each reason


class LeftOut(NamedTuple):
    """What a dataset holds and does not use, for one reason."""

    count: int
    first: tuple[str, ...]  # some of their names, as messages show them


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
    """The accounting of a whole dataset, all splits of it.

    Attributes:
        unit: what is counted, "files", "rows" or "records".
        num_classes: how many classes its labels have.
        used: examples of each split.
        left_out: by the reason, in words that follow a number: "not an image", "unreadable".
        notes: what else was decided, one line each, such as copies that lie in two splits.
    """

    unit: str
    num_classes: int
    used: Mapping[str, int]
    left_out: Mapping[str, LeftOut] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def found(self) -> int:
        """How many there are; each is used or left out."""
        return sum(self.used.values()) + self.num_left_out

    @property
    def num_left_out(self) -> int:
        return sum(each.count for each in self.left_out.values())

    @property
    def lost(self) -> bool:
        """Whether more is left out than what systems put into folders."""
        return bool(self.left_out.keys() - {SYSTEM})

    def line(self) -> str:
        """Say it in one line: "9 classes in 3 splits (...); 12 of 1,512 files left out: ..."."""
        splits = ", ".join(f"{name} {count:,}" for name, count in self.used.items())
        many = f"{len(self.used)} splits" if len(self.used) != 1 else "1 split"
        kinds = f"{self.num_classes:,} classes" if self.num_classes != 1 else "1 class"
        text = f"{kinds} in {many} ({splits})"
        if not self.left_out:
            return f"{text}; all {self.found:,} {self.unit} used"
        return f"{text}; {self.why_left_out()}"

    def why_left_out(self) -> str:
        """Say what is left out of what was found: "12 of 1,512 files left out: 8 empty (...)"."""
        why = ", ".join(_reason(reason, each) for reason, each in self.left_out.items())
        return f"{self.num_left_out:,} of {self.found:,} {self.unit} left out: {why}"

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON values."""
        left_out = {why: [each.count, list(each.first)] for why, each in self.left_out.items()}
        return {**dataclasses.asdict(self), "left_out": left_out, "notes": list(self.notes)}


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
    """Return the dataset of a source's name, "birds[train]" or "birds[train[:9%]]"."""
    depth = 0
    for at in range(len(name) - 1, 0, -1):  # from the end: a folder's name may have brackets too
        depth += (name[at] == "]") - (name[at] == "[")
        if name[at] == "[" and not depth:
            return name[:at]
    return name


def tell(name: str, account: Account | None, *, strict: bool = False) -> None:
    """Print a dataset's account on process 0: a line, and a warning for each of its notes.

    Args:
        name: of a source of it, or of itself.
        account: None where nobody has counted.
        strict: whether everything must be used, and nothing noted, as `DataConfig.strict`.

    Raises UserError: it is not so, and `strict`.
    """
    if account is None:
        return
    where = dataset_of(name)
    if strict and (account.lost or account.notes):
        why = [account.why_left_out()] if account.lost else []
        advice = f"mend that, or set {setting('config.data.strict=false')}"
        raise UserError(f"data.strict: {where}: {'; '.join([*why, *account.notes])}; {advice}")
    if waiting.is_first():
        print(f"{where}: {account.line()}", flush=True)
        for note in account.notes:
            print(f"warning: {where}: {note}", flush=True)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield what differs between two `to_json` trees, one line each; {} is no account."""
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
