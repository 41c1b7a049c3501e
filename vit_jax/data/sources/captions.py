# SPDX-License-Identifier: Apache-2.0
"""Captions: read from whatever a source has them in, drawn one an image, and turned into tokens.

Which of its captions an image comes with in training is a function of (seed, position) alone, as
all that is drawn for an example, so that a batch stays a function of (seed, step).
"""

import enum
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Bool, Int

from vit_jax.data.order import uniforms
from vit_jax.data.sources.base import (
    Example,
    Source,
    Wrapped,
    captions_of,
    has_captions,
    target_of,
)
from vit_jax.errors import UserError

if TYPE_CHECKING:
    from vit_jax.text.tokenizers import Tokenizer

# What columns, features and keys of JSON with captions are called, in any case; the first is taken.
USUAL = ("captions", "caption", "text", "sentences")
WITHOUT = "without a caption"  # the reason why an image is left out
# The arrays that a batch has of the captions drawn.
TOKENS, CAPTION_ID, CUT = "tokens", "caption_id", "cut"
INSIDE = ("text", "raw", "caption")  # where the text lies in captions that have more than a text
# The view of `uniforms`, after all that images may have.
_VIEW = 1 << 32


class Captions(enum.Enum):
    """What is done with the captions of images."""

    UNREAD = "unread"
    READ = "read"  # where there are some; an image may have none
    NEEDED = "needed"  # images without are left out, and a dataset without is refused


class Given(NamedTuple):
    """The captions in a value, and how many of them are not UTF-8."""

    texts: tuple[str, ...]
    broken: int


def usual(names: Iterable[str], known: Sequence[str] = USUAL) -> str:
    """Return the first of the names by which captions are known that is there, "" for none."""
    there = {name.lower(): name for name in reversed([*names])}
    return next((there[name] for name in known if name in there), "")


def listed(value: Any) -> Given:
    """Return the captions in a text, bytes, a list of these or of dicts with a text; or in None.

    Spaces around a caption go, and captions without anything else. What is not UTF-8 is replaced.

    Raises ValueError: the value is something else.
    """
    texts: list[str] = []
    broken = 0
    left = [value]
    while left:
        each = left.pop()
        if isinstance(each, np.ndarray | np.generic):
            each = each.tolist()
        if isinstance(each, dict):
            left.append(next((each[name] for name in INSIDE if name in each), None))
        elif isinstance(each, list | tuple):
            left += reversed(each)
        elif isinstance(each, bytes | str):
            # Half of a surrogate pair, which JSON can hold, has no UTF-8 either.
            given = each if isinstance(each, bytes) else each.encode(errors="surrogatepass")
            text = given.decode(errors="replace")
            broken += text.encode() != given
            texts.append(text.strip())
        elif not (each is None or each != each):  # NaN is pandas' word for nothing
            raise ValueError(f"a caption is text, and this is of type {type(each).__name__}")
    return Given(tuple(filter(None, texts)), broken)


def in_member(content: bytes, field: str, *, is_json: bool) -> Given:
    """Return the captions in a text of a tar, or in a key of JSON, "" for one of a usual name."""
    if not is_json:
        return listed(content)
    text = content.decode(errors="replace")
    try:
        tree = json.loads(text)
        found = listed(tree.get(field or usual(tree)) if isinstance(tree, dict) else None)
    except (ValueError, RecursionError):  # no JSON, or something else under that name
        return Given((), 0)
    return found._replace(broken=found.broken + (text.encode() != content))


def notes(broken: int) -> list[str]:
    """Return a line for captions that are not UTF-8, if there are some."""
    what = "captions are not UTF-8; what cannot be read of them is \N{REPLACEMENT CHARACTER}"
    return [f"{broken:,} {what}"] if broken else []


def lacking(where: str, what: str, has: Iterable[str], how: str) -> UserError:
    """Return the error of a dataset in which no captions are found.

    Args:
        where: the dataset in messages.
        what: those that are not there, "column of captions (...)".
        has: the names of what there is instead.
        how: an option that chooses, or what else to do.
    """
    return UserError(f"{where} has no {what}; there are {', '.join(has) or 'none'}; {how}")


def leave_out(
    members: Mapping[str, Int[np.ndarray, " _"] | Sequence[int]],
    has: Bool[np.ndarray, " M"],
    tell: Callable[[int], str],
) -> tuple[dict[str, Int[np.ndarray, " _"]], list[tuple[str, str]]]:
    """Leave the examples without a caption out of the splits.

    Returns the splits, and (reason, name) of what is left out.

    Args:
        members: the indices of the examples of each split.
        has: whether an example has a caption.
        tell: names an example by its index.
    """
    lost = [(WITHOUT, tell(index)) for index in np.flatnonzero(~has).tolist()]
    arrays = {name: np.asarray(found, int) for name, found in members.items()}
    return {name: found[has[found]] for name, found in arrays.items()}, lost


class Texts:
    """The captions of many examples in one piece of memory, which pickles quickly."""

    def __init__(self, captions: Iterable[tuple[str, ...]]) -> None:
        rows = [json.dumps(each).encode() for each in captions]
        self._data = b"".join(rows)
        self._ends = np.cumsum([0, *map(len, rows)])

    def __getitem__(self, index: int) -> tuple[str, ...]:
        return tuple(json.loads(self._data[self._ends[index] : self._ends[index + 1]]))

    def digest(self) -> bytes:
        """Return what tells these captions from others."""
        return hashlib.sha256(self._data).digest()


class Tokenized(Wrapped):
    """A source whose captions come as tokens, drawn by `Batches`; around all other sources.

    An example by itself, from `read`, has those of its first caption.

    Attributes:
        source: whose examples these are.

    Raises UserError: it has no captions.
    """

    def __init__(self, source: Source, tokenizer: "Tokenizer") -> None:
        super().__init__(source)
        if not has_captions(source):
            raise UserError(f"{source.name} has no captions, or was opened without")
        self.source, self.tokenizer = source, tokenizer
        self._length = tokenizer.rows([""]).ids.shape[1]

    @property
    def spec(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        return {**self.source.spec, **token_spec(self._length)}

    def __len__(self) -> int:
        return len(self.source)

    def read(self, index: int) -> Example:
        example = self.source.read(index)
        made = self.tokens(list(example["captions"][:1]) or [""])
        return {**example, **{name: array[0] for name, array in made.items()}}

    def captions(self, index: int) -> tuple[str, ...]:
        return captions_of(self.source, index)

    def target(self, index: int) -> Any:
        return target_of(self.source, index)

    def example_id(self, index: int) -> str:
        return self.source.example_id(index)

    def tokens(self, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return tokens int32 [n, L], caption_id int32 [n], and cut int32 [n]: 1 of a text cut."""
        rows = self.tokenizer.rows(texts)
        return {
            TOKENS: rows.ids,
            CAPTION_ID: np.array([caption_id(text) for text in texts], np.int32),
            CUT: rows.is_cut.astype(np.int32),
        }


def token_spec(length: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return shape and dtype, for one example, of the arrays that a batch has of its captions."""
    shapes = {TOKENS: (length,), CAPTION_ID: (), CUT: ()}
    return {name: jax.ShapeDtypeStruct(shape, np.int32) for name, shape in shapes.items()}


def caption_id(text: str) -> int:
    """Return 31 bits that are equal for equal texts, on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=4).digest()) >> 1


def drawn(
    captions: Sequence[tuple[str, ...]], seed: int | None, positions: Int[np.ndarray, " n"]
) -> list[str]:
    """Draw one of the captions of each example, by its position in the stream.

    Each has one at least; `seed` None takes the first.
    """
    if seed is None:
        return [each[0] for each in captions]
    shares = uniforms(seed, positions, 1, _VIEW)[:, 0].tolist()
    return [each[int(x * len(each))] for each, x in zip(captions, shares, strict=True)]
