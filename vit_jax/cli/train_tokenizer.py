# SPDX-License-Identifier: Apache-2.0
"""`vit_jax train-tokenizer CAPTIONS`: a small tokenizer of one's own captions, in a file."""

import csv
import dataclasses
import io
import json
from pathlib import Path
from typing import ClassVar

from vit_jax import errors
from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.errors import UserError
from vit_jax.process import escapes
from vit_jax.storage import files, foreign
from vit_jax.text.training import LEAST_SIZE, Kind

_MOST = 1 << 32  # bytes of captions
_COLUMNS = ("captions", "caption", "text", "sentences", "title")  # as data sets call them
_SPLIT = "split"


@dataclasses.dataclass(kw_only=True)
class TrainTokenizer(Options):
    """Trains a small tokenizer on the captions that a model is to learn from.

    CAPTIONS is a text file with a caption a line, or a table, .csv or .tsv, with a column of them;
    a cell can hold several as a list of JSON. Captions that are there twice count once, and their
    order does not matter: the same captions give the same file, byte for byte. Letters are made
    small, and no character is unknown. The file holds all that the ids depend on. Training keeps a
    copy in the run's folder, and a run goes on with that tokenizer alone.

      vit_jax train-tokenizer captions.txt --out=words.json
      vit_jax train-tokenizer data/captions.csv --column=caption --size=4000 --out=words.json
    """

    usage: ClassVar[str] = "vit_jax train-tokenizer CAPTIONS --out=FILE [flags]"

    captions: str = flag(
        "", "a .txt, .csv or .tsv file", "[CAPTIONS]", ask="which captions? name a .txt or .csv file"
    )
    out: Path = flag(Path(), "the file to write: FILE.json", ask="--out=FILE.json says where to")
    size: int = flag(2000, "ids at most; few captions give fewer", least=LEAST_SIZE, most=1 << 20)
    kind: Kind = flag(Kind.BPE, "pairs of bytes that are joined, or the likeliest pieces")
    column: str = flag("", f"of a table; default: the first of {', '.join(_COLUMNS)} that it has")
    split: str = flag("train", "of a table with a column `split`: whose captions; 'all' for all")
    context: int = flag(64, "tokens of a text that a model reads, that of its end included", least=2)
    force: bool = flag(False, "replace the file")


def train_tokenizer(given: TrainTokenizer) -> None:
    """Write the tokenizer, and print how it fits the captions.

    Raises UserError: no captions, no such column, a file that cannot be read or written.
    """
    from vit_jax.cost import tables
    from vit_jax.text import tokenizers, training

    files.check_file(given.out, "--out", force=given.force, suffix=".json")
    captions = _read(given)
    found = training.train(captions, given.size, given.kind, given.context)
    tokenizers.save(found, given.out)
    fit = training.fit(found, captions)
    different = len(training.distinct(captions))
    print(f"{fit.num_captions:,} captions, {different:,} different")
    print(f"{found.vocab_size:,} ids, of which single characters or more are {fit.coverage:.2%} ")
    print(f"of all tokens; {fit.mean:.1f} tokens a caption\n")
    rows = [[str(n), f"{cut:,}", f"{cut / fit.num_captions:.1%}"] for n, cut in fit.cut.items()]
    print("\n".join(tables.align(["context", "captions cut", ""], rows, right=[0, 1, 2])))
    print(f"\nwrote {given.out}, digest {found.digest}")


def _read(given: TrainTokenizer) -> list[str]:
    """Return the captions, empty ones left out and counted."""
    path = Path(given.captions).expanduser()
    kinds = {".txt": _lines, ".csv": _cells, ".tsv": _cells}
    if path.suffix.lower() not in kinds:
        raise errors.unknown("kind of file with captions", path.suffix or str(path), kinds)
    with files.refused(f"cannot read {path}"):
        data = foreign.read(path, _MOST)
    text = data.decode("utf-8-sig", errors="replace")
    if text.encode() != data.removeprefix(b"\xef\xbb\xbf"):
        print(f"{path} is not UTF-8 throughout; what cannot be read is \N{REPLACEMENT CHARACTER}")
    found = kinds[path.suffix.lower()](text, given)
    captions = [caption for caption in found if caption.strip()]
    if len(captions) < len(found):
        print(f"{len(found) - len(captions):,} captions are empty, and left out")
    if not captions:
        raise UserError(f"{path} holds no caption")
    return captions


def _lines(text: str, given: TrainTokenizer) -> list[str]:
    if given.column:
        raise UserError(f"--column={given.column}: {given.captions} has a caption a line; drop it")
    return text.removesuffix("\n").split("\n")


def _cells(text: str, given: TrainTokenizer) -> list[str]:
    head = text.partition("\n")[0]
    csv.field_size_limit(1 << 24)
    rows = csv.DictReader(io.StringIO(text), delimiter="\t" if "\t" in head else ",")
    names = [name.strip() for name in rows.fieldnames or ()]
    rows.fieldnames = names
    column = given.column or next((each for each in _COLUMNS if each in names), "")
    if not column:
        raise UserError(
            f"{given.captions} has no column {', '.join(_COLUMNS)}; name one of its own, "
            f"--column={names[0] if names else 'NAME'}: {errors.some([escapes.cell(n) for n in names])}"
        )
    if column not in names:
        raise errors.unknown("--column", column, names)
    found: list[str] = []
    splits = set()
    try:
        for row in rows:
            split = (row.get(_SPLIT) or "").strip()
            splits.add(split)
            if _SPLIT not in names or given.split in ("all", split):
                found += _texts(row[column] or "")
    except csv.Error as error:
        raise UserError(f"{given.captions}, line {rows.line_num}: {error}") from None
    if not found and splits and _SPLIT in names:
        raise errors.unknown("--split", given.split, {*splits, "all"})
    return found


def _texts(cell: str) -> list[str]:
    """Return the captions of a cell: a list of JSON, or one text."""
    if cell[:1] == "[":
        try:
            tree = json.loads(cell)
        except (ValueError, RecursionError):
            tree = None
        if isinstance(tree, list) and all(isinstance(each, str) for each in tree):
            return tree
    return [cell]


main = options.verb(TrainTokenizer, train_tokenizer)
