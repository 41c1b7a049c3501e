# SPDX-License-Identifier: Apache-2.0
"""`vit_jax train-tokenizer CAPTIONS`: a small tokenizer of one's own captions, in a file."""

import dataclasses
from pathlib import Path
from typing import ClassVar

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.errors import UserError
from vit_jax.storage import files, foreign
from vit_jax.text.training import LEAST_SIZE, TokenizerKind

_MOST = 1 << 32  # bytes of a text file


@dataclasses.dataclass(kw_only=True)
class TrainTokenizer(Options):
    """Trains a small tokenizer on the captions that a model is to learn from.

    CAPTIONS is a text file, .txt, with a caption a line, or a dataset with captions, as
    --config.data.name takes it. Captions that are there twice count once, and their order does not
    matter: the same captions give the same file, byte for byte. Letters are made small, and no
    character is unknown. The file holds all that the ids depend on.

      vit_jax train-tokenizer captions.txt --out=words.json
      vit_jax train-tokenizer csv:data/captions.csv --size=4000 --out=words.json
    """

    usage: ClassVar[str] = "vit_jax train-tokenizer CAPTIONS --out=FILE [flags]"

    captions: str = flag(
        "",
        "FILE.txt, or csv:FILE, tar:PATTERN, parquet:PATTERN, hf:NAME, or a dataset of TFDS",
        "[CAPTIONS]",
        ask="which captions? name a .txt file, csv:FILE, tar:PATTERN, parquet:PATTERN or hf:NAME",
    )
    out: Path = flag(Path(), "the file to write: FILE.json", ask="--out=FILE.json says where to")
    size: int = flag(2000, "ids at most; few captions give fewer", least=LEAST_SIZE, most=1 << 20)
    kind: TokenizerKind = flag(
        TokenizerKind.BPE, "joined pairs of bytes, or a vocabulary of the likeliest pieces"
    )
    context: int = flag(64, "ids of a text that a model reads, its end's included", least=2)
    split: str = flag("train", "of a dataset: whose captions, as --config.data.train_split")
    data_dir: str = flag("", "default: $TFDS_DATA_DIR or ~/tensorflow_datasets", "DIR")
    force: bool = flag(False, "replace the file")


def train_tokenizer(given: TrainTokenizer) -> None:
    """Write the tokenizer, and print how it fits the captions.

    Raises UserError: no captions, or a file that cannot be read or written.
    """
    from vit_jax.cost import tables
    from vit_jax.text import tokenizers, training

    files.check_file(given.out, "--out", force=given.force, suffix=".json")
    captions = _read(given)
    found = training.train(captions, given.size, given.kind, given.context)
    tokenizers.save(found, given.out)
    fit = training.fit(found, captions)
    print(f"{fit.num_captions:,} captions, {len(training.distinct(captions)):,} different")
    print(f"{found.vocab_size:,} ids; {fit.mean:.1f} a caption")
    print(f"{fit.coverage:.2%} of them are whole characters or more\n")
    rows = [[str(n), f"{cut:,}", f"{cut / fit.num_captions:.1%}"] for n, cut in fit.cut.items()]
    print("\n".join(tables.align(["context", "captions cut", ""], rows, right=[0, 1, 2])))
    print(f"\nwrote {given.out}, digest {found.digest}")


def _read(given: TrainTokenizer) -> list[str]:
    """Return the captions; empty ones are left out and counted."""
    if not given.captions.lower().endswith(".txt"):
        return _of_source(given)
    path = Path(given.captions).expanduser()
    with files.refused(f"cannot read {path}"):
        data = foreign.read(path, _MOST)
    text = data.decode("utf-8-sig", errors="replace")
    if text.encode() != data.removeprefix(b"\xef\xbb\xbf"):
        print(f"{path} is not UTF-8 throughout; what cannot be read is \N{REPLACEMENT CHARACTER}")
    lines = text.removesuffix("\n").split("\n")
    captions = [line for line in lines if line.strip()]
    if not captions:
        raise UserError(f"{path} holds no caption")
    if len(captions) < len(lines):
        print(f"{path}: {len(lines) - len(captions):,} of {len(lines):,} lines are empty")
    return captions


def _of_source(given: TrainTokenizer) -> list[str]:
    from vit_jax import data
    from vit_jax.data.account import tell
    from vit_jax.data.sources.base import account_of, all_captions

    source = data.open_source(
        given.captions, given.data_dir, given.split, captions=data.Captions.NEEDED
    )
    tell(source.name, account_of(source))
    return [caption for each in all_captions(source) for caption in each]


main = options.verb(TrainTokenizer, train_tokenizer)
