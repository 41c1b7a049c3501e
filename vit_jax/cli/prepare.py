# SPDX-License-Identifier: Apache-2.0
"""`vit_jax prepare NAME`: make a dataset readable here, or any source an ArrayRecord dataset, once.

TFDS's own builders decode and encode with TensorFlow; training and evaluation never need it, nor
does a copy to ArrayRecord.
"""

import dataclasses
import enum
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.cli import check_data
from vit_jax.cli.check_data import CheckData
from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.errors import UserError
from vit_jax.process import escapes
from vit_jax.settings.fields import check_effects
from vit_jax.storage import files

if TYPE_CHECKING:
    from vit_jax.data import Captions, Source


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
    compares a finished copy with its checksums.

      vit_jax prepare cifar10
      vit_jax prepare 'tar:shards/*.tar' --to=arrayrecord --out=data/birds
      vit_jax prepare folder:fields --statistics --bands=all --out=fields.json
    """

    name: str = flag(
        "",
        "a dataset of TFDS, or what --config.data.name takes",
        "[NAME]",
        ask="which dataset? name one of TFDS, such as cifar10, or folder:DIR, tar:PATTERN, ...",
    )
    data_dir: str = flag("", "default: $TFDS_DATA_DIR or ~/tensorflow_datasets", "DIR")
    to: DatasetFormat = flag(DatasetFormat.AS_IS, "arrayrecord: copy any dataset to --out")
    check: bool = flag(False, "as `vit_jax check-data NAME --csv=OUT`: write nothing else")
    out: Path = flag(
        Path(),
        "with --to: DIR/NAME, where NAME will be the dataset's; with --check: FILE.csv; with "
        "--statistics: FILE.json",
        "DIR/NAME",
    )
    statistics: bool = flag(
        False, "measure mean and std of the training split, for --config.data.statistics"
    )
    bands: tuple[str, ...] = flag((), "images are arrays: as --config.data.bands, all or some")
    channels: int = flag(3, "with --statistics of pictures: 3 (RGB) or 1 (grey)", least=1, most=3)
    nodata: float | None = flag(None, "with --statistics: a value that is no measurement")
    captions: bool = flag(False, "with their captions; images without one are left out")
    splits: tuple[str, ...] = flag(
        (), "with --to or --check: those to read, by default all; with --statistics one: train"
    )
    num_threads: int = flag(
        0,
        "with --to, --check or --statistics: what is in work at once; 0 is one per core, or 32 "
        "for a bucket",
        least=0,
    )


def prepare(given: Prepare) -> int | None:
    """Write the dataset, unless it is there; or check it, and return 65 if anything is amiss."""
    if given.statistics and (given.check or given.to is not DatasetFormat.AS_IS):
        raise UserError("--statistics measures; give it without --check and --to")
    acts = bool(given.statistics) and not given.bands, "without --statistics of pictures"
    rules = ((*acts, "channels"), (given.statistics, "without --statistics", "nodata"))
    check_effects(given, "--", rules)
    if given.statistics:
        _measure(given)
        return None
    if given.check and given.to is not DatasetFormat.AS_IS:
        raise UserError("--check reads and --to writes; give one of them")
    if given.check:
        return check_data.check_data(
            CheckData(
                name=given.name,
                data_dir=given.data_dir,
                splits=given.splits,
                bands=given.bands,
                csv=given.out,
                num_threads=given.num_threads,
            )
        )
    if given.to is DatasetFormat.ARRAYRECORD:
        _copy(given)
        return None
    from vit_jax.data import full_name, inspection
    from vit_jax.data.sources.partition import KINDS

    if given.name == "digits" or full_name(given.name).startswith(KINDS):
        sources = inspection.open_splits(*_asked(given))
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


def _asked(given: Prepare) -> "tuple[str, str, tuple[str, ...], Captions, tuple[str, ...]]":
    from vit_jax.data import Captions

    wanted = Captions.NEEDED if given.captions else Captions.UNREAD
    return given.name, given.data_dir, given.splits, wanted, given.bands


def _measure(given: Prepare) -> None:
    """Measure the training split, print what a config takes, and write it where --out says."""
    from vit_jax import data
    from vit_jax.data import statistics

    if len(given.splits) > 1:
        raise UserError(f"--splits={','.join(given.splits)}: statistics are of one split")
    if given.out != Path():
        files.check_file(given.out, "--out", force=True, suffix=".json")
    split = next(iter(given.splits), "train")
    source = data.open_source(given.name, given.data_dir, split, bands=given.bands)
    _tell({"": source})
    threads = given.num_threads or check_data.threads({"": source})
    found = statistics.measure(
        source, given.bands, channels=given.channels, nodata=given.nodata, num_threads=threads
    )
    print("\n".join(found.lines()))
    if given.out != Path():
        with files.refused(f"--out={given.out}"):
            files.write(given.out, found.json())
        print(f"wrote {given.out}: --config.data.statistics={given.out}")


def _tell(sources: Mapping[str, "Source"]) -> None:
    from vit_jax.data.account import tell
    from vit_jax.data.sources.base import account_of

    source = next(iter(sources.values()))
    tell(source.name, account_of(source))


def _copy(given: Prepare) -> None:
    from vit_jax.data import inspection
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
        sources = inspection.open_splits(*_asked(given))
        _tell(sources)
        copy_records.write(
            given.out, sources, given.num_threads or check_data.threads(sources), print
        )
    place = f"--config.data.name={name} --config.data.data_dir={given.out.parent}"
    print(f"{target} is ready: {place}")


main = options.verb(Prepare, prepare)
