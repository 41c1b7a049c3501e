# SPDX-License-Identifier: Apache-2.0
"""`vit_jax check-data NAME`: what of a dataset cannot be used, says nothing, or contradicts itself.

Every image is read and decoded once; the result is a table, a CSV file, a contact sheet.
"""

import csv
import dataclasses
import io
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.errors import DataError, shown
from vit_jax.process import escapes
from vit_jax.storage import files

if TYPE_CHECKING:
    import numpy as np

    from vit_jax.data import Source
    from vit_jax.data.inspection import Fault

_FAR = 32  # threads of reads from a bucket, most of which wait for it
_MOST = 50  # findings that are listed on the terminal
_EACH, _COLUMNS = 16, 8  # pictures of a kind in the contact sheet, and in a row of it


@dataclasses.dataclass(kw_only=True)
class CheckData(Options):
    """Looks through a dataset, and lists every image that training had better not see.

    Those that cannot be read, with the reason: empty, cut off, too large, of a format that is not
    read. Those that say nothing: wholly black, white, transparent or of another colour. Copies,
    by their pixels: there twice, in two splits, in two classes. And the files of a folder that are
    no images. Captions are counted; masks, boxes and depth are read, and counted. It takes whatever
    --config.data.name takes, and reads every image once.

      vit_jax check-data photos/birds
      vit_jax check-data 'tar:shards/*.tar' --csv=findings.csv --sheet=findings.png

    Exit status: 0 nothing was found, 65 something was, 2 bad usage.
    """

    usage: ClassVar[str] = "vit_jax check-data NAME [flags]"

    name: str = flag(
        "",
        "what --config.data.name takes: a folder, a table, tar or Parquet files, ...",
        "[NAME]",
        ask="which dataset? name a folder, a .csv file, tar:PATTERN, parquet:PATTERN, hf:NAME, ...",
    )
    data_dir: str = flag("", "default: $TFDS_DATA_DIR or ~/tensorflow_datasets", "DIR")
    splits: tuple[str, ...] = flag((), "those to look through; by default all")
    bands: tuple[str, ...] = flag((), "images are arrays: as --config.data.bands, all or some")
    csv: Path = flag(Path(), "write all findings, a line each: FILE.csv")
    sheet: Path = flag(Path(), "draw the first 16 images of each kind: FILE.png")
    num_threads: int = flag(
        0, "images in work at once; 0 is one per core, or 32 for a bucket", least=0
    )


def check_data(given: CheckData) -> int:
    """Print what was found and return 65, or 0 where nothing was.

    Raises UserError: no such dataset or split, a file that cannot be written.
    """
    from vit_jax.data import inspection
    from vit_jax.data.account import dataset_of, tell
    from vit_jax.data.sources.captions import Captions

    for path, name, suffix in ((given.csv, "--csv", ".csv"), (given.sheet, "--sheet", ".png")):
        if path != Path():
            files.check_file(path, name, force=True, suffix=suffix)
    which = given.name, given.data_dir, given.splits, Captions.READ, given.bands
    sources = inspection.open_splits(*which)
    where = next(iter(sources.values())).name
    found = inspection.inspect(sources, given.num_threads or threads(sources))
    tell(where, found.account)
    if found.captions is not None:
        print(found.captions.line())
    if found.targets:
        print(found.targets)
    _print(found.findings, dataset_of(where).removeprefix("./"), given.csv)
    if given.csv != Path():
        _write(given.csv, found.findings)
    if given.sheet != Path() and found.findings:
        _draw(given.sheet, where, sources, found.findings)
    good = f"{found.num_decoded:,} of {found.num_images:,} images can be decoded"
    print(good if found.findings else f"{good}, and nothing is amiss")
    return DataError.status if found.findings else 0


def threads(sources: Mapping[str, "Source"]) -> int:
    """Return how many examples to read at once."""
    from vit_jax.data.sources.base import is_remote

    return _FAR if any(map(is_remote, sources.values())) else os.cpu_count() or 1


def _print(findings: list["Fault"], above: str, all_in: Path) -> None:
    """Print a table of the kinds and the first findings; their names without the folder `above`."""
    from vit_jax.cost import tables

    if not findings:
        return

    def short(text: str) -> str:
        return shown(text.replace(f"{above}/", ""))

    counts = Counter(each.found for each in findings)
    first = {each.found: short(each.name) for each in reversed(findings)}
    rows = [[kind, f"{count:,}", first[kind]] for kind, count in counts.items()]
    print("\n".join(["", *tables.align(["found", "images", "the first"], rows, right=[1]), ""]))
    for each in findings[:_MOST]:
        place = f" [{_place(each)}]" if _place(each) else ""
        why = f": {short(each.why)}" if each.why != each.found else ""
        print(escapes.terminal(f"  {each.found}: {short(each.name)}{place}{why}"))
    if len(findings) > _MOST:
        more = f"  and {len(findings) - _MOST:,} more"
        print(more if all_in != Path() else f"{more}; --csv=FILE.csv has all")
    print()


def _place(finding: "Fault") -> str:
    """Return "cat of train", or what of it is known."""
    return " of ".join(filter(None, (finding.label, finding.split)))


def _write(path: Path, findings: Iterable["Fault"]) -> None:
    """Write a line for each finding, without its index."""
    from vit_jax.data.inspection import Fault

    text = io.StringIO()
    rows = [Fault._fields, *findings]
    csv.writer(text, lineterminator="\n").writerows(map(escapes.cell, row[:-1]) for row in rows)
    with files.refused(f"--csv={path}"):
        files.write(path, text.getvalue())
    print(f"wrote {path}, {len(rows) - 1:,} rows")


def _draw(
    path: Path, where: str, sources: Mapping[str, "Source"], findings: Iterable["Fault"]
) -> None:
    from vit_jax.data.account import dataset_of
    from vit_jax.figures import contact_sheet
    from vit_jax.figures.contact_sheet import Tile

    kinds: dict[str, list[Fault]] = {}
    for each in findings:
        if each.index >= 0:  # a file that is no image has no picture
            kinds.setdefault(each.found, []).append(each)
    rows: list[list[Tile]] = []
    for kind, members in kinds.items():
        tiles = [
            Tile(_image(sources[x.split], x.index), f"{kind}\n{_short(x.name)}\n{_place(x)}")
            for x in members[:_EACH]
        ]
        rows += contact_sheet.wrapped(tiles, _COLUMNS)
    if not rows:
        print(f"{path}: none of the files that were found has a picture")
        return
    title = f"{dataset_of(where)}: " + ", ".join(f"{len(m):,} {kind}" for kind, m in kinds.items())
    with files.refused(f"--sheet={path}"):
        files.write(path, contact_sheet.render(rows, title))
    print(f"wrote {path}")


def _image(source: "Source", index: int) -> "np.ndarray":
    """Return the pixels of an example; of one that cannot be decoded, a grey cross."""
    import numpy as np

    from vit_jax.data.images import bands
    from vit_jax.data.images.decode import decode
    from vit_jax.data.sources.base import bands_of

    try:
        data = source.read(index)["image"]
        if chosen := bands_of(source):
            return bands.picture(bands.load(data, chosen).pixels)
        return decode(data, 3)
    except (ValueError, OSError):
        side = 32
        rows, columns = np.ogrid[:side, :side]
        cross = (np.abs(rows - columns) < 2) | (np.abs(rows + columns - side + 1) < 2)
        return np.where(cross, 128, 225).astype(np.uint8)[..., None]


def _short(name: str) -> str:
    """Return the last two parts of a path, which fit below a small picture."""
    return "/".join(name.split("/")[-2:])


main = options.verb(CheckData, check_data)
