# SPDX-License-Identifier: Apache-2.0
"""`vit_jax prepare NAME`: make a dataset readable here, or any source an ArrayRecord dataset, once.

TFDS's own builders decode and encode with TensorFlow; training and evaluation never need it, nor
does a copy to ArrayRecord.
"""

import contextlib
import dataclasses
import enum
import importlib.util
import json
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.cli import options
from vit_jax.cli.options import Options, flag
from vit_jax.errors import UserError, unknown

if TYPE_CHECKING:
    from vit_jax.data import Source


_FAR = 32  # threads of a copy from a bucket, most of which wait for it


class Format(enum.StrEnum):
    """What a dataset is written as; AS_IS writes nothing but what makes it readable."""

    AS_IS = "as_is"
    ARRAYRECORD = "arrayrecord"


@dataclasses.dataclass(kw_only=True)
class Prepare(Options):
    """Downloads a TFDS dataset and writes it as ArrayRecord, which trains without TensorFlow.

    Needs the extra [tf] in the environment that prepares, once. With --to=arrayrecord any dataset
    that `data.name` takes is copied to --out, without TensorFlow: encoded images stay the bytes
    that they are, in the same order. The same command goes on after it was interrupted, and
    compares a finished copy with its checksums.

      vit_jax prepare cifar10
      vit_jax prepare 'tar:shards/*.tar' --to=arrayrecord --out=data/birds
    """

    name: str = flag(
        "",
        "a dataset of TFDS, or what --config.data.name takes",
        "[NAME]",
        ask="which dataset? name one of TFDS, such as cifar10, or folder:DIR, tar:PATTERN, ...",
    )
    data_dir: str = flag("", "default: $TFDS_DATA_DIR or ~/tensorflow_datasets", "DIR")
    to: Format = flag(Format.AS_IS, "arrayrecord: copy any dataset to --out")
    out: Path = flag(Path(), "with --to: DIR/NAME, where NAME will be the dataset's", "DIR/NAME")
    splits: tuple[str, ...] = flag((), "with --to: those to copy; by default all")
    num_threads: int = flag(
        0, "with --to: shards written at once; 0 is one per core, or 32 for a bucket", least=0
    )


def prepare(given: Prepare) -> None:
    """Write the dataset, unless it is there."""
    if given.to is Format.ARRAYRECORD:
        return _copy(given)
    from vit_jax.data import full_name
    from vit_jax.data.partition import KINDS

    if given.name == "digits" or full_name(given.name).startswith(KINDS):
        for source in _opened(given).values():
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
    from vit_jax.data.partition import WHOLE

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


def _copy(given: Prepare) -> None:
    from vit_jax.data import copy_records
    from vit_jax.data.sources import is_remote

    name = given.out.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        shape = "name the dataset to be by its last part, in small letters, digits and _"
        raise UserError(f"--out={given.out}: {shape}: --out=DIR/birds")
    target = given.out / copy_records.VERSION
    if target.exists():
        count = copy_records.compare(target)
        print(f"{target} is there, and its {count} shards match their checksums.")
        print(json.loads((target / "dataset_info.json").read_text())["description"])
    else:
        sources = _opened(given)
        far = any(map(is_remote, sources.values()))
        threads = given.num_threads or (_FAR if far else os.cpu_count() or 1)
        copy_records.write(given.out, sources, threads, print)
    place = f"--config.data.name={name} --config.data.data_dir={given.out.parent}"
    print(f"{target} is ready: {place}")


main = options.verb(Prepare, prepare)
