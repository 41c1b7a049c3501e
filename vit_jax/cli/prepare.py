# SPDX-License-Identifier: Apache-2.0
"""`vit_jax prepare NAME`: make a dataset readable here, or any source an ArrayRecord dataset, once.

TFDS's own builders decode and encode with TensorFlow; training and evaluation never need it, nor
does a copy to ArrayRecord.
"""

import contextlib
import csv
import dataclasses
import enum
import importlib.util
import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.errors import DataError, UserError, shown, unknown
from vit_jax.process import escapes
from vit_jax.storage import files

if TYPE_CHECKING:
    from vit_jax.data import Source


_FAR = 32  # threads of reads from a bucket, most of which wait for it
_MOST = 50  # files that a check lists on the terminal


class DatasetFormat(enum.StrEnum):
    """What a dataset is written as; AS_IS writes nothing but what makes it readable."""

    AS_IS = "as_is"
    ARRAYRECORD = "arrayrecord"


@dataclasses.dataclass(kw_only=True)
class Prepare(Options):
    """Downloads a TFDS dataset and writes it as ArrayRecord, which trains without TensorFlow.

    Needs the extra [tf] in the environment that prepares, once. With --to=arrayrecord any dataset
    that `data.name` takes is copied to --out, without TensorFlow: encoded images stay the bytes
    that they are, in the same order. The same command goes on after it was interrupted, and
    compares a finished copy with its checksums. With --check every image of any dataset is read
    and decoded, and what is left out, broken or there twice is listed; the exit status is 65 then.

      vit_jax prepare cifar10
      vit_jax prepare photos/birds --check
      vit_jax prepare 'tar:shards/*.tar' --to=arrayrecord --out=data/birds
    """

    name: str = flag(
        "",
        "a dataset of TFDS, or what --config.data.name takes",
        "[NAME]",
        ask="which dataset? name one of TFDS, such as cifar10, or folder:DIR, tar:PATTERN, ...",
    )
    data_dir: str = flag("", "default: $TFDS_DATA_DIR or ~/tensorflow_datasets", "DIR")
    to: DatasetFormat = flag(DatasetFormat.AS_IS, "arrayrecord: copy any dataset to --out")
    check: bool = flag(False, "read and decode every image, and list those that cannot be used")
    out: Path = flag(
        Path(),
        "with --to: DIR/NAME, where NAME will be the dataset's; with --check: a table of all that "
        "is listed, FILE.csv",
        "DIR/NAME",
    )
    splits: tuple[str, ...] = flag((), "with --to or --check: those to read; by default all")
    num_threads: int = flag(
        0,
        "with --to or --check: what is in work at once; 0 is one per core, or 32 for a bucket",
        least=0,
    )


def prepare(given: Prepare) -> int | None:
    """Write the dataset, unless it is there; or check it, and return 65 if anything is amiss."""
    if given.check and given.to is not DatasetFormat.AS_IS:
        raise UserError("--check reads and --to writes; give one of them")
    if given.check:
        return _check(given)
    if given.to is DatasetFormat.ARRAYRECORD:
        _copy(given)
        return None
    from vit_jax.data import full_name
    from vit_jax.data.sources.partition import KINDS

    if given.name == "digits" or full_name(given.name).startswith(KINDS):
        sources = _opened(given)
        _tell(sources)
        for source in sources.values():
            print(f"{source.name} is ready: {len(source):,} examples, {source.num_classes} classes")
        return None
    if importlib.util.find_spec("tensorflow") is None:
        advice = "pip install tensorflow, then this command again (training does not need it)"
        raise UserError(f"{given.name} needs TensorFlow once, in any environment: {advice}")
    import tensorflow_datasets as tfds

    try:
        place = given.data_dir or None
        builder = tfds.builder(given.name, data_dir=place, file_format="array_record")
        builder.download_and_prepare()
    except Exception as error:  # TFDS, the network or the disk raise it
        raise UserError(f"{given.name}: {' '.join(str(error).split())[:300]}") from error
    print(f"{builder.data_path} is ready: --config.data.name={given.name}")
    return None


def _opened(given: Prepare) -> dict[str, "Source"]:
    """Open the splits given, or all that have examples; raises UserError: no such split."""
    from vit_jax.data import SplitError, open_source
    from vit_jax.data.names import with_known_names
    from vit_jax.data.sources import look
    from vit_jax.data.sources.partition import WHOLE

    with look.once():
        names: list[str] = []
        try:
            open_source(given.name, given.data_dir, split="?")
        except SplitError as error:  # it has the names of those that there are
            names = [name for name in error.splits if name != WHOLE] or list(error.splits)
        asked = [with_known_names(split, names) for split in given.splits]
        for split in asked:
            if split not in names:
                raise unknown(f"split of {given.name}", split, names)
        found: dict[str, Source] = {}
        for split in asked or names:
            with contextlib.suppress(SplitError):  # one of classes of one or two images is empty
                found[split] = open_source(given.name, given.data_dir, split)
    return found


def _tell(sources: dict[str, "Source"]) -> None:
    from vit_jax.data.account import tell
    from vit_jax.data.sources.base import account_of

    source = next(iter(sources.values()))
    tell(source.name, account_of(source))


def _check(given: Prepare) -> int:
    from vit_jax.data import inspection
    from vit_jax.data.account import tell

    if given.out != Path():
        files.check_file(given.out, "--out", force=True, suffix=".csv")
    sources = _opened(given)
    where = next(iter(sources.values())).name
    found = inspection.inspect(sources, given.num_threads or _threads(sources))
    account = found.account
    tell(where, dataclasses.replace(account, notes=(*account.notes, *found.copies)))
    rows = [*found.broken, *found.left_out]
    for row in rows[:_MOST]:
        print(f"  {shown(row.name)}{f' [{row.split}]' if row.split else ''}: {shown(row.why)}")
    if len(rows) > _MOST:
        more = f"  and {len(rows) - _MOST:,} more"
        print(more if given.out != Path() else f"{more}; --out=FILE.csv lists all")
    if given.out != Path():
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerows(map(escapes.cell, row) for row in [inspection.Fault._fields, *rows])
        with files.refused(f"--out={given.out}"):
            files.write(given.out, text.getvalue())
        print(f"wrote {given.out}, {len(rows):,} rows")
    count = sum(map(len, sources.values()))
    good = f"{count - len(found.broken):,} of {count:,} images can be decoded"
    amiss = bool(found.broken or account.lost or account.notes or found.copies)
    print(good if amiss else f"{good}, and nothing is left out or there twice")
    return DataError.status if amiss else 0


def _threads(sources: dict[str, "Source"]) -> int:
    from vit_jax.data.sources.base import is_remote

    return _FAR if any(map(is_remote, sources.values())) else os.cpu_count() or 1


def _copy(given: Prepare) -> None:
    from vit_jax.data.sources import copy_records, records

    name = given.out.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        shape = "name the dataset to be by its last part, in small letters, digits and _"
        raise UserError(f"--out={given.out}: {shape}: --out=DIR/birds")
    target = given.out / copy_records.VERSION
    if target.exists():
        count = copy_records.compare(target)
        print(f"{target} is there, and its {count} shards match their checksums.")
        info = records.read(target / records.INFO)
        print(escapes.lines(info.get("description", "")))
    else:
        sources = _opened(given)
        _tell(sources)
        copy_records.write(given.out, sources, given.num_threads or _threads(sources), print)
    place = f"--config.data.name={name} --config.data.data_dir={given.out.parent}"
    print(f"{target} is ready: {place}")


main = options.verb(Prepare, prepare)
