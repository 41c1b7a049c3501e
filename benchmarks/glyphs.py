# SPDX-License-Identifier: Apache-2.0
"""Draw letters, as many as wanted, in class folders: images with labels that need no download.

    python -m benchmarks.glyphs runs/glyphs [--each 1200] [--sides 24 48]

Twenty letters in six fonts, turned, of many colours and sizes, as JPEG, PNG and WebP.
"""

import argparse
import io
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

CLASSES = "ABCDEFGHIJKLMNOPQRST"
SIDES = (40, 200)  # pixels: at least, below
FONTS = ("DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono", "STIXGeneral", "cmr10")
FORMATS = ("jpeg", "png", "webp")


def draw_glyph(
    letter: str, rng: np.random.Generator, sides: tuple[int, int] = SIDES
) -> Image.Image:
    """Draw a letter, dark on light or light on dark, of a random width and height in `sides`."""
    import matplotlib as mpl

    width, height = (int(side) for side in rng.integers(*sides, 2))
    side = 2 * min(width, height)  # drawn larger, turned, then brought to size
    file = Path(mpl.get_data_path(), "fonts", "ttf", f"{FONTS[rng.integers(len(FONTS))]}.ttf")
    font = ImageFont.truetype(file, int(side * rng.uniform(0.45, 0.8)))
    ink = Image.new("L", (side, side))
    place = tuple(side * rng.uniform(0.4, 0.6, 2))
    ImageDraw.Draw(ink).text(place, letter, 255, font, anchor="mm")
    ink = ink.rotate(rng.uniform(-20, 20), Image.Resampling.BICUBIC).resize((width, height))
    dark, light = rng.integers(0, 110, 3), rng.integers(150, 256, 3)
    front, back = (dark, light) if rng.random() < 0.7 else (light, dark)
    share = np.asarray(ink, np.float32)[..., None] / 255
    pixels = share * front + (1 - share) * back + rng.normal(0, rng.uniform(0, 20), share.shape)
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    return image.convert("L") if rng.random() < 0.2 else image


def draw_glyphs(folder: Path, each: int, sides: tuple[int, int] = SIDES) -> None:
    """Write FOLDER/CLASS/NUMBER.{jpeg,png,webp}, `each` of every class, the same ones each time."""
    rng = np.random.default_rng(0)
    for letter in CLASSES:
        (folder / letter).mkdir(parents=True)
        for number in range(each):
            form = FORMATS[number % len(FORMATS)]
            file = io.BytesIO()
            draw_glyph(letter, rng, sides).save(file, form)
            (folder / letter / f"{number}.{form}").write_bytes(file.getvalue())


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--each", type=int, default=1200, help="images of a class")
    parser.add_argument("--sides", type=int, nargs=2, default=(24, 48), help="pixels: least, below")
    args = parser.parse_args(argv)
    if args.folder.exists():
        sys.exit(f"error: {args.folder} exists")
    start = time.perf_counter()
    draw_glyphs(args.folder, args.each, tuple(args.sides))
    took = time.perf_counter() - start
    print(f"drew {args.each * len(CLASSES):,} glyphs in {took:.0f} s: {args.folder}")


if __name__ == "__main__":
    main()
