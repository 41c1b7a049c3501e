# SPDX-License-Identifier: Apache-2.0
"""Which class each id of a mask is: classes.txt, ids that are ignored, zero as no class.

`?ignore=255` names ids that neither teach nor count ("none" is none, and several are joined by
commas); `?zero=ignore` takes 0 for no class, so that class k has the id k + 1; `?ids=0,255` lists
the ids of the classes, in their order.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Int16, UInt8, UInt16

from vit_jax.data.images import header
from vit_jax.data.images.bands import numpy_array
from vit_jax.data.targets import IGNORED
from vit_jax.errors import UserError, shown

_MOST = 1 << 16  # ids of a mask of 16 bits
_BAD = -2
OPTIONS = ("ignore", "zero", "ids")


class Ids(NamedTuple):
    """The meaning of a mask's ids.

    Attributes:
        num_classes: K.
        ignored: ids of no class.
        first: the id of class 0, if ids are consecutive.
        listed: the ids of the classes; () where they are consecutive.
    """

    num_classes: int
    ignored: tuple[int, ...]
    first: int = 0
    listed: tuple[int, ...] = ()

    def table(self) -> Int16[np.ndarray, " 65536"]:
        """Return the class of each id, `IGNORED`, or -2 for an id that means nothing."""
        table = np.full(_MOST, _BAD, np.int16)
        for k, value in enumerate(self.listed or range(self.first, self.first + self.num_classes)):
            table[value] = k
        if self.first:
            table[: self.first] = IGNORED
        for value in self.ignored:
            table[value] = IGNORED
        return table

    def classes_of(
        self, mask: UInt8[np.ndarray, "h w"] | UInt16[np.ndarray, "h w"]
    ) -> Int16[np.ndarray, "h w"]:
        """Return the class of each pixel, or `IGNORED`; raises ValueError: an id of no class."""
        found = self.table()[: 256 if mask.dtype == np.uint8 else _MOST][mask]
        if (found == _BAD).any():
            worst = int(mask[found == _BAD].max())
            raise ValueError(f"has pixels of the id {worst}, which is no class; {self.advice()}")
        return found

    def unknown(self, ids: Collection[int]) -> list[int]:
        """Return those ids that mean nothing."""
        table = self.table()
        return sorted(value for value in ids if table[value] == _BAD)

    def advice(self) -> str:
        """Return what to do about an id that means nothing."""
        last = self.first + self.num_classes - 1
        are = f"are {self.first} to {last}" if not self.listed else f"are {_told(self.listed)}"
        return f"ids of classes {are}; name all of them, or set ?ignore=ID at the name's end"


def ids_of(
    chosen: Mapping[str, str], names: Sequence[str], there: Collection[int], where: str
) -> tuple[Ids, tuple[str, ...]]:
    """Return the meaning of ids, and the names of the classes.

    Args:
        chosen: the options of the dataset's name.
        names: of the classes; () where nobody names them, and they are counted.
        there: the ids that the masks have; empty where nobody looked.
        where: the dataset in messages.

    Raises UserError: options that contradict themselves or the names; no names, and nobody looked.
    """
    listed = _numbers(chosen, "ids")
    if (zero := chosen.get("zero", "ignore")) != "ignore":
        raise UserError(f"?zero={zero}: it can be ignore alone; leave it out to have 0 as a class")
    first = 1 if "zero" in chosen else 0
    if listed and first:
        raise UserError("?ids= and ?zero=ignore do not go together; list the ids of the classes")
    if len({*listed}) != len(listed):
        raise UserError(f"?ids={chosen['ids']} lists an id twice; list each once")
    if listed and names and len(listed) != len(names):
        counts = f"{len(listed)} ids and {len(names)} names"
        raise UserError(f"{where}: {counts} of classes; give as many")
    usual = 255 if max(len(names), len(listed)) <= 255 else 65535
    ignored = (usual,) if "ignore" not in chosen else _numbers(chosen, "ignore")
    if "ignore" not in chosen:
        ignored = tuple(value for value in ignored if value not in listed)
    if both := {*listed} & {*ignored}:
        raise UserError(f"{where}: the id {min(both)} is listed and ignored; choose one")
    if not names and not listed and not there:
        what = f"{where} names no classes, and nobody looked at its masks"
        raise UserError(f"{what}; name them in a file, or list their ids by ?ids=0,1")
    counted = max((value for value in there if value not in ignored), default=0) + 1 - first
    number = len(listed) or len(names) or max(counted, 1)
    given = tuple(names) or tuple(str(value) for value in listed or range(first, first + number))
    return Ids(number, ignored, first, listed), given


def read_mask(data: bytes, name: str) -> UInt8[np.ndarray, "h w"] | UInt16[np.ndarray, "h w"]:
    """Decode the ids of a mask: one channel of 8 or 16 bits, or a palette's numbers.

    Raises ValueError: it cannot be read, or holds colours.
    """
    if name.lower().endswith(".npy"):
        found = numpy_array(data, "iubf")
        if found.ndim != 2 or found.dtype.kind not in "iub":
            raise ValueError(f"holds {found.dtype} of {found.ndim} axes, and no ids (h, w)")
        if found.size and (found.min() < 0 or found.max() >= _MOST):
            raise ValueError(f"holds ids from {found.min()} to {found.max()}")
        return found.astype(np.uint8 if found.max(initial=0) < 256 else np.uint16)
    with header.open_image(data) as image:
        header.check_size(image.height, image.width)
        if image.mode in ("L", "P", "1"):
            return np.asarray(image, np.uint8)
        if image.mode.startswith("I;16") or image.mode == "I":
            found = np.asarray(image)
            if found.min() >= 0 and found.max() < _MOST:
                return found.astype(np.uint16)
        raise ValueError("holds colours, and no class ids of one channel or a palette")


def _numbers(chosen: Mapping[str, str], key: str) -> tuple[int, ...]:
    text = chosen.get(key, "none")
    if text == "none":
        return ()
    if not re.fullmatch(r"\d{1,5}(,\d{1,5})*", text) or any(
        int(word) >= _MOST for word in text.split(",")
    ):
        raise UserError(f"?{key}={shown(text)}: give ids from 0 to 65535, joined by commas")
    return tuple(map(int, text.split(",")))


def _told(ids: Sequence[int]) -> str:
    return ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
