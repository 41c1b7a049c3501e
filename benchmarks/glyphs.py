# SPDX-License-Identifier: Apache-2.0
"""Draw letters in class folders, as many as wanted: images with labels that need no download.

    python -m benchmarks.glyphs runs/glyphs [--share 1.0]

Twenty letters in six fonts, white on black, turned a little, 32 pixels square, in the splits
`unlabelled`, of 20,000 images, `labelled`, `held_out` and `unseen`.
"""

import argparse
import io
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CLASSES = "ABCDEFGHIJKLMNOPQRST"
SIDE = 32  # pixels
SPLITS = {"unlabelled": 1000, "labelled": 20, "held_out": 30, "unseen": 120}  # of a class
_SIDES = (40, 200)  # of coloured ones: at least, below
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10")

Draw = Callable[[str, np.random.Generator], Image.Image]


def draw_scan(letter: str, rng: np.random.Generator) -> Image.Image:
    """Draw a letter as a scan would show it, light on dark, noisy, `SIDE` pixels square."""
    ink = draw_ink(letter, rng, 2 * SIDE, size=(0.6, 0.8), place=(0.45, 0.55), degrees=10)
    level = np.asarray(ink.resize((SIDE, SIDE)), np.float32)
    pixels = level * rng.uniform(0.6, 1) + rng.normal(0, 10, level.shape)
    return Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))


def draw_glyph(letter: str, rng: np.random.Generator) -> Image.Image:
    """Draw a letter, dark on light or light on dark, 40 to 200 pixels a side."""
    width, height = (int(side) for side in rng.integers(*_SIDES, 2))
    side = 2 * min(width, height)
    ink = draw_ink(letter, rng, side, size=(0.45, 0.8), place=(0.4, 0.6), degrees=20)
    ink = ink.resize((width, height))
    dark, light = rng.integers(0, 110, 3), rng.integers(150, 256, 3)
    front, back = (dark, light) if rng.random() < 0.7 else (light, dark)
    share = np.asarray(ink, np.float32)[..., None] / 255
    pixels = share * front + (1 - share) * back + rng.normal(0, rng.uniform(0, 20), share.shape)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return image.convert("L") if rng.random() < 0.2 else image


def draw_ink(
    letter: str,
    rng: np.random.Generator,
    side: int,
    *,
    size: tuple[float, float],
    place: tuple[float, float],
    degrees: float,
) -> Image.Image:
    """Draw a letter larger than it is wanted, white on black, and turn it."""
    import matplotlib as mpl

    file = Path(mpl.get_data_path(), "fonts", "ttf", f"{FONTS[rng.integers(len(FONTS))]}.ttf")
    font = ImageFont.truetype(file, int(side * rng.uniform(*size)))
    ink = Image.new("L", (side, side))
    centre = tuple(side * rng.uniform(*place, 2))
    ImageDraw.Draw(ink).text(centre, letter, 255, font, anchor="mm")
    return ink.rotate(rng.uniform(-degrees, degrees), Image.Resampling.BICUBIC)


def write(
    folder: Path, each: int, draw: Draw, formats: Sequence[str], rng: np.random.Generator
) -> None:
    """Write FOLDER/CLASS/NUMBER.FORMAT, `each` of every class."""
    for letter in CLASSES:
        (folder / letter).mkdir(parents=True)
        for number in range(each):
            form = formats[number % len(formats)]
            file = io.BytesIO()
            draw(letter, rng).save(file, form)
            (folder / letter / f"{number}.{form}").write_bytes(file.getvalue())


def write_splits(folder: Path, share: float = 1.0) -> str:
    """Write all splits, or a share of each; return what was drawn."""
    rng = np.random.default_rng(0)
    each = {split: max(1, round(share * count)) for split, count in SPLITS.items()}
    for split, count in each.items():
        write(folder / split, count, draw_scan, ["png"], rng)
    return f"{sum(each.values()) * len(CLASSES):,} letters"


def command_line(
    draw: Callable[[Path, float], str], doc: str | None, argv: Sequence[str] | None
) -> None:
    """Run the command line of a module that draws a share of a dataset into a folder."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--share", type=float, default=1.0, help="of the images, for a trial")
    args = parser.parse_args(argv)
    if args.folder.exists():
        sys.exit(f"error: {args.folder} exists")
    start = time.perf_counter()
    what = draw(args.folder, args.share)
    print(f"drew {what} in {time.perf_counter() - start:.0f} s: {args.folder}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    command_line(write_splits, __doc__, argv)


if __name__ == "__main__":
    main()
