# SPDX-License-Identifier: Apache-2.0
"""`vit_jax search TEXT --images=DIR --from=RUN`: the images of a folder that a text describes."""

import csv
import dataclasses
import io
import sys
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import InputOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.cost.tables import align
from vit_jax.data import AS_SHOWN
from vit_jax.errors import UserError, shown
from vit_jax.figures.contact_sheet import Tile, render, wrapped
from vit_jax.inference import image_text
from vit_jax.inference.image_text import Match
from vit_jax.inference.images import expand, read_image
from vit_jax.inference.trained import Trained, title
from vit_jax.process.escapes import cell, terminal
from vit_jax.storage import files

_COLUMNS = 6  # of the sheet
_SIDE = 320  # pixels to which photographs are brought before the sheet makes them smaller


@dataclasses.dataclass(kw_only=True)
class Search(InputOptions):
    """Finds the images that a text describes: ranked by the cosine to it, the nearest first.

    Several texts are ranked each by itself. A model with a bias (SigLIP) also says how likely each
    pair is; others (CLIP) compare, and say nothing of one pair alone. The model must have a text
    tower: a run of images and texts, or CLIP or SigLIP of the Hub.

      vit_jax search "a red bicycle" --images=photos --from=hub:openai/clip-vit-base-patch16
      vit_jax search "a red bicycle" "a cat" --images=photos --from=runs/clip --sheet=found.png

    Exit status: 0 all images were read, 1 some were not (stderr lists them), 2 bad usage.
    """

    texts: tuple[str, ...] = flag(
        (), "what to look for", "[TEXT ...]", ask='what to look for? write "a red bicycle"'
    )
    images: tuple[str, ...] = flag(
        (), "where: folders, files or patterns", "DIR,...", ask="where to look? add --images=DIR"
    )
    tokenizer: str = model_options.tokenizer()
    top: int = flag(12, "images of each text", least=1)
    sheet: Path | None = flag(None, "draw them, a row or more for each text", "FILE.png")
    csv: Path | None = flag(None, "write them as a table", "FILE.csv")
    force: bool = flag(False, "replace a FILE that is there")
    batch_size: int = flag(32, "images at once, over all devices", least=1)


def search(given: Search, found: Trained) -> int:
    """Print and write what is found; returns 1 where an image was broken, else 0."""
    image_text.check_texts(given.texts)
    for name, file, suffix in (("sheet", given.sheet, ".png"), ("csv", given.csv, ".csv")):
        if file:
            files.check_file(file, f"--{name}", force=given.force, suffix=suffix)
    names = expand(given.images, sys.stdin)
    trained, pair = image_text.read(found)
    if cut := pair.tokenizer.count_cut(given.texts):
        most = f"longer than {pair.tokenizer.context} tokens, and cut"
        print(
            f"{cut} of {len(given.texts)} texts {'is' if cut == 1 else 'are'} {most}",
            file=sys.stderr,
        )
    model_options.say_slow_dtype(found)
    images = image_text.embed_files(trained, pair, names, batch_size=given.batch_size)
    for line in images.errors:
        print(f"skipped {terminal(line)}", file=sys.stderr)
    if images.errors:
        print(f"{len(images.errors):,} of {len(names):,} images were skipped", file=sys.stderr)
    matches = image_text.search(pair, images, given.texts, given.top)
    print(f"{terminal(title(trained))}\n{len(images.files):,} images")
    for text, row in zip(given.texts, matches, strict=True):
        print("\n".join(["", terminal(text), *_table(row)]))
    for file, make in ((given.csv, _csv), (given.sheet, _sheet)):
        if file:
            with files.refused(f"cannot write {file}"):
                files.write(file, make(given.texts, matches))
            print(f"wrote {shown(str(file))}")
    return 1 if images.errors else 0


def _table(row: Sequence[Match]) -> list[str]:
    rows = [
        [str(rank), f"{each.cosine:.4f}", _percent(each), shown(each.file)]
        for rank, each in enumerate(row, 1)
    ]
    header = ["rank", "cosine", "probability", "image"]
    if row[0].probability is None:
        header, rows = [x for x in header if x != "probability"], [[*x[:2], x[3]] for x in rows]
    return align(header, rows, right=range(len(header) - 1))


def _percent(match: Match) -> str:
    return "" if match.probability is None else f"{match.probability:.2%}"


def _csv(texts: Sequence[str], matches: Sequence[Sequence[Match]]) -> bytes:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("text", "rank", "cosine", "probability", "file"))
    for text, row in zip(texts, matches, strict=True):
        for rank, (file, cosine, chance) in enumerate(row, 1):
            chance = "" if chance is None else float(f"{chance:.6g}")
            table.writerow(map(cell, (text, rank, float(f"{cosine:.6g}"), chance, file)))
    return out.getvalue().encode(errors="backslashreplace")


def _sheet(texts: Sequence[str], matches: Sequence[Sequence[Match]]) -> bytes:
    rows = []
    for number, found in enumerate(matches, 1):
        tiles = []
        for rank, each in enumerate(found, 1):
            score = _percent(each) or f"{each.cosine:.3f}"
            about = f"{number}.{rank}" if len(texts) > 1 else f"{rank}"
            tiles.append(Tile(_picture(each.file), f"{about}: {score}\n{_name(each.file)}"))
        rows += wrapped(tiles, _COLUMNS)
    numbered = [f"{i}. {terminal(text)}" for i, text in enumerate(texts, 1)]
    return render(rows, "\n".join(numbered) if len(texts) > 1 else terminal(texts[0]))


def _name(file: str) -> str:
    return terminal(shown(Path(file).name))


def _picture(file: str) -> np.ndarray:
    """Return an image in colour, small enough for a sheet."""
    try:
        image = read_image(file, 3, AS_SHOWN)
    except UserError:  # it was changed since, or is of another kind of pixels
        return np.full((_SIDE, _SIDE, 3), 255, np.uint8)
    scale = _SIDE / max(image.shape[:2])
    if scale >= 1:
        return image
    return cv2.resize(image, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)


main = options.verb(Search, search, model_options.read)
