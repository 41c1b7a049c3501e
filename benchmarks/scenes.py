# SPDX-License-Identifier: Apache-2.0
"""Letters drawn on photographs, with all that is known of every pixel, and no download.

    python -m benchmarks.scenes runs/scenes [--share 1.0]

A scene is 64 pixels square: a cut of one of scikit-learn's two photographs, and one to three of six
letters, each of a size, colour and angle of its own, the later over the earlier. Three datasets
show the same scenes: `masks:FOLDER`, the letter of each pixel; `coco:FOLDER/coco` with the images
in FOLDER/images, each letter's mask and box; `depth:FOLDER`, where a letter is as far as it is
small, and the photograph lies behind all. `masks:FOLDER/others` has scenes of six other letters,
to pretrain on. Training scenes are of the left of the photographs, test scenes of the right.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from benchmarks.glyphs import command_line, draw_ink

LETTERS, OTHERS = "ABCDEF", "GHJKLN"
SIDE = 64  # pixels
SIZES = (30, 52)  # pixels of a letter's square, at least, below
SPLITS = {"train": 3000, "val": 400}  # scenes
FAR = 3.0  # metres to the photograph; a letter of SIZES[1] pixels is at 1
_TRAINED = 0.65  # share of a photograph, from the left, that training scenes are cut from
_VISIBLE = 12  # pixels of a letter that must be seen, or it is drawn again


class Scene(NamedTuple):
    """An image, and the letters on it; of the first the number is 0, and -1 is the photograph."""

    image: np.ndarray  # uint8 [SIDE, SIDE, 3]
    seen: np.ndarray  # int [SIDE, SIDE], number of the letter
    letters: list[int]  # the class of each, 0 is "A"
    sizes: list[int]


def photographs() -> list[np.ndarray]:
    """Return scikit-learn's two sample photographs, uint8 [427, 640, 3]."""
    from sklearn.datasets import load_sample_images

    return [np.asarray(photo) for photo in load_sample_images().images]


def draw(rng: np.random.Generator, photos: Sequence[np.ndarray], split: str, names: str) -> Scene:
    """Draw a scene with one to three of the letters; each is seen in part at least."""
    letters = rng.integers(0, len(names), rng.integers(1, 4)).tolist()
    while True:
        scene = _draw(rng, photos[int(rng.integers(len(photos)))], split, names, letters)
        counts = [(scene.seen == i).sum() for i in range(len(letters))]
        if min(counts) >= _VISIBLE:
            return scene


def _draw(
    rng: np.random.Generator, photo: np.ndarray, split: str, names: str, letters: list[int]
) -> Scene:
    height, width = photo.shape[:2]
    cut = int(rng.integers(SIDE, 2 * SIDE))
    border = int(_TRAINED * width)
    low, high = (0, border - cut) if split == "train" else (border, width - cut)
    y, x = int(rng.integers(height - cut + 1)), int(rng.integers(low, high + 1))
    part = Image.fromarray(photo[y : y + cut, x : x + cut]).resize((SIDE, SIDE))
    image = np.asarray(part, np.float32).copy()
    seen, sizes = np.full((SIDE, SIDE), -1), []
    for number, letter in enumerate(letters):
        size = int(rng.integers(*SIZES))
        ink = draw_ink(names[letter], rng, size, size=(0.8, 1.0), place=(0.5, 0.5), degrees=20)
        top, left = (int(each) for each in rng.integers(0, SIDE - size + 1, 2))
        where = (slice(top, top + size), slice(left, left + size))
        share = np.asarray(ink, np.float32)[..., None] / 255
        image[where] = share * rng.integers(0, 256, 3) + (1 - share) * image[where]
        seen[where][share[..., 0] > 0.5] = number
        sizes.append(size)
    image += rng.normal(0, 4, image.shape)
    return Scene(np.clip(image, 0, 255).astype(np.uint8), seen, letters, sizes)


def write(folder: Path, share: float = 1.0) -> str:
    """Write all datasets below `folder`, or a share of their scenes; return what was drawn."""
    photos, rng = photographs(), np.random.default_rng(0)
    each = {split: max(8, round(share * count)) for split, count in SPLITS.items()}
    places = {folder: LETTERS, folder / "others": OTHERS}
    for place, names in places.items():
        for split, count in each.items():
            _write_split(place, split, names, count, photos, rng)
        (place / "classes.txt").write_text("".join(f"{name}\n" for name in ("photograph", *names)))
    return f"{sum(each.values()) * len(places):,} scenes"


def _write_split(
    folder: Path,
    split: str,
    names: str,
    count: int,
    photos: Sequence[np.ndarray],
    rng: np.random.Generator,
) -> None:
    kinds = {kind: folder / kind / split for kind in ("images", "masks", "depth")}
    for place in kinds.values():
        place.mkdir(parents=True)
    images, found = [], []
    for i in range(count):
        scene, name = draw(rng, photos, split, names), f"{i:05}.png"
        Image.fromarray(scene.image).save(kinds["images"] / name)
        # 0 is the photograph.
        of_pixel = np.asarray([0, *(k + 1 for k in scene.letters)], np.uint8)[scene.seen + 1]
        Image.fromarray(of_pixel).save(kinds["masks"] / name)
        metres = np.asarray([FAR, *(SIZES[1] / size for size in scene.sizes)])[scene.seen + 1]
        Image.fromarray(np.round(1000 * metres).astype(np.uint16)).save(kinds["depth"] / name)
        images.append({"id": i, "file_name": f"{split}/{name}", "width": SIDE, "height": SIDE})
        found += [_annotation(len(found) + n, i, scene, n) for n in range(len(scene.letters))]
    categories = [{"id": k + 1, "name": letter} for k, letter in enumerate(names)]
    content = {"images": images, "annotations": found, "categories": categories}
    (folder / "coco").mkdir(exist_ok=True)
    (folder / "coco" / f"{split}.json").write_text(json.dumps(content))


def _annotation(number: int, image: int, scene: Scene, letter: int) -> dict[str, Any]:
    """Return COCO's annotation of a letter: its box, and its mask in uncompressed run lengths."""
    mask = scene.seen == letter
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    box = [columns[0], rows[0], columns[-1] + 1 - columns[0], rows[-1] + 1 - rows[0]]
    flat = np.concatenate([[False], mask.T.ravel()])
    ends = np.flatnonzero(np.diff(flat.astype(np.int8)) != 0)
    counts = np.diff(np.concatenate([[0], ends, [mask.size]])).tolist()
    return {
        "id": number,
        "image_id": image,
        "category_id": scene.letters[letter] + 1,
        "bbox": [int(x) for x in box],
        "area": int(mask.sum()),
        "iscrowd": 0,
        "segmentation": {"size": [SIDE, SIDE], "counts": counts},
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    command_line(write, __doc__, argv)


if __name__ == "__main__":
    main()
