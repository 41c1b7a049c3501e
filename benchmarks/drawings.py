# SPDX-License-Identifier: Apache-2.0
"""Emoji of four artists, and further sets, as PNG files with captions, from the npm registry alone.

    python -m benchmarks.drawings runs/emoji/drawings [--test-artist twemoji]

Needs `npm`, and `pip install cairosvg` with the cairo library. Writes below the folder
ARTIST/HEX.png and tables: captions-twemoji.csv with a row for each drawing, captions-twemoji-drawn
without those that are outlined here, captions-twemoji-three with those of the four artists alone,
val_concept-twemoji and so on with a split; names.json, what a concept is called besides its name;
LICENCES.txt. The drawings are the artists', and some licences ask to share alike: none lies in this
repository.

A concept is what has one name in Unicode's CLDR and was drawn by all four artists. Some concepts
are held out whole, with all that differ in who does it (man, woman, person), by a hash of
the name: the same on every machine.
"""

import argparse
import csv
import hashlib
import importlib
import io
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Drawn(NamedTuple):
    """A set of drawings: its package, whose it is, and their licence."""

    package: str
    maker: str
    licence: str


_ICONS = "@iconify-json"
ARTISTS = {
    "noto": Drawn(f"{_ICONS}/noto@1.2.9", "Google", "Apache-2.0"),
    "fluent": Drawn(f"{_ICONS}/fluent-emoji-flat@1.2.6", "Microsoft", "MIT"),
    "openmoji": Drawn(f"{_ICONS}/openmoji@1.2.29", "OpenMoji", "CC-BY-SA-4.0"),
    "twemoji": Drawn(f"{_ICONS}/twemoji@1.2.5", "Twitter", "CC-BY-4.0"),
}
# Sets without some of the concepts, which may join in training.
FURTHER = {
    "noto-v1": Drawn(f"{_ICONS}/noto-v1@1.2.5", "Google", "Apache-2.0"),
    "fluent-lines": Drawn(f"{_ICONS}/fluent-emoji-high-contrast@1.2.6", "Microsoft", "MIT"),
    "emojione": Drawn(f"{_ICONS}/emojione@1.2.3", "EmojiOne", "CC-BY-4.0"),
    "emojione-v1": Drawn(f"{_ICONS}/emojione-v1@1.2.3", "EmojiOne", "CC-BY-SA-4.0"),
    "emojione-lines": Drawn(f"{_ICONS}/emojione-monotone@1.2.1", "EmojiOne", "CC-BY-4.0"),
    "fxemoji": Drawn(f"{_ICONS}/fxemoji@1.2.2", "Mozilla", "Apache-2.0"),
}
# Sets that also join with black outlines, as OpenMoji draws.
_OUTLINES, _OUTLINED = ("noto", "fluent", "twemoji", "emojione"), "-outlined"
SETS = ("all", "drawn", "three")  # with outlines, without, and without any further set
FURTHER |= {f"{name}{_OUTLINED}": (ARTISTS | FURTHER)[name] for name in _OUTLINES}
_NAMES = "emojibase-data@17.0.0"  # MIT, of Unicode's CLDR
# Flags are nearly the same in all sets; components are hair and skin.
_LEFT_OUT = ("component", "flags")
_SOMEONE = re.compile(r"\b(?:man|men|woman|women|person|people|boy|girl|male|female)\b")
_QUOTES = (
    "'\N{RIGHT SINGLE QUOTATION MARK}\N{LEFT DOUBLE QUOTATION MARK}\N{RIGHT DOUBLE QUOTATION MARK}"
)
_UNSEEN = 0.22  # of the families
SIDE = 64  # pixels of a drawing
_PAPER = 245  # of 255; what is lighter in all channels is the paper
NAMES = "names.json"  # what each concept is called, by its name
SPLITS = ("train", "val_concept", "test_artist", "test_both")
COLUMNS: tuple[str, ...] = (
    "path",
    "label",
    "caption",
    "captions",
    "half",
    "concept",
    "artist",
    "split",
)


class Concept(NamedTuple):
    """What was drawn: its code points, CLDR's name and keywords, and the SVG of each artist."""

    code: str
    name: str
    keywords: tuple[str, ...]
    drawings: Mapping[str, str]


def share(name: str) -> float:
    """Return a number in [0, 1) that a name determines."""
    return int.from_bytes(hashlib.sha256(f"unseen:{name}".encode()).digest()[:8]) / 2**64


def family(name: str) -> str:
    """Return what concepts that differ in who does it have in common: "detective"."""
    rest = re.sub(r"[^a-z0-9]+", " ", _SOMEONE.sub(" ", name.lower())).strip()
    return rest or name.lower()


def split_of(artist: str, name: str, test_artist: str) -> str:
    """Return the split of a drawing, "" for one that is left out.

    A further set has no drawing of an unseen concept, so that val_concept is of the artists alone,
    and none by the maker of the test's.
    """
    unseen = share(family(name)) < _UNSEEN
    if artist == test_artist:
        return "test_both" if unseen else "test_artist"
    if artist in FURTHER and (unseen or FURTHER[artist].maker == ARTISTS[test_artist].maker):
        return ""
    return "val_concept" if unseen else "train"


def svg(icons: Mapping[str, Any], name: str) -> str:
    """Return a drawing of a set, "" for one that is not there, or only another one turned."""
    aliases = icons.get("aliases", {})
    while name in aliases and set(aliases[name]) == {"parent"}:
        name = aliases[name]["parent"]
    icon = icons["icons"].get(name)
    if icon is None:
        return ""
    width, height = (icon.get(side, icons.get(side, 16)) for side in ("width", "height"))
    box = f"{icon.get('left', 0)} {icon.get('top', 0)} {width} {height}"
    spaces = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
    size = f'width="{width}" height="{height}" viewBox="{box}"'
    return f"<svg {spaces} {size}>{icon['body']}</svg>"


def outlined(text: str) -> str:
    """Return a drawing with a black line around each of its shapes."""
    head, body = text.removesuffix("</svg>").split(">", 1)
    sides = re.search(r'width="([\d.]+)" height="([\d.]+)"', head)
    assert sides, head
    width = max(map(float, sides.groups())) / 36  # as OpenMoji's
    line = f'stroke="#000" stroke-width="{width:g}" stroke-linejoin="round"'
    return f"{head}><g {line}>{body}</g></svg>"


def concepts(
    entries: Iterable[Mapping[str, Any]],
    left_out: Iterable[int],
    icons: Mapping[str, Mapping[str, Any]],
    by_code: Mapping[str, Mapping[str, str]],
) -> list[Concept]:
    """Return what all four artists have drawn, with the drawings of every set.

    Args:
        entries: emojibase's list of emoji.
        left_out: numbers of its groups.
        icons: iconify's JSON of each set.
        by_code: the names of a set's drawings by code points; {} where a set has CLDR's names.
    """
    found = []
    groups = set(left_out)
    for entry in entries:
        if entry.get("group") is None or entry["group"] in groups:
            continue
        code, label = entry["hexcode"].lower(), entry["label"]
        # Without the variation selector, which sets have or have not.
        bare = "-".join(point for point in code.split("-") if point != "fe0f")
        drawings = {}
        for artist, pack in icons.items():
            names = (slug(label), slug(label).replace("-", ""))  # CLDR's, with hyphens or without
            if by_code.get(artist):
                names = (by_code[artist].get(bare, ""),)
            drawings[artist] = next(filter(None, (svg(pack, name) for name in names)), "")
        if all(drawings[artist] for artist in ARTISTS):
            there = {artist: text for artist, text in drawings.items() if text}
            there |= {f"{x}{_OUTLINED}": outlined(there[x]) for x in _OUTLINES if x in there}
            keywords = tuple(tag for tag in entry.get("tags", ()) if tag != label)
            found.append(Concept(code, label, keywords, there))
    return found


def slug(name: str) -> str:
    """Return a name as iconify writes it: "man's shoe" is "mans-shoe"."""
    bare = "".join(c for c in name.lower() if c not in _QUOTES)
    return re.sub(r"[^a-z0-9]+", "-", bare).strip("-")


def half(concept: Concept) -> list[str]:
    """Return the name and the keywords, the name as often as there are keywords."""
    return [concept.name] * max(len(concept.keywords), 1) + list(concept.keywords)


def rows(found: Sequence[Concept], test_artist: str) -> list[dict[str, str]]:
    """Return the rows of a table of captions, one a drawing.

    `captions` are the name and the keywords; `half` is as the function of that name returns it.
    """
    table = []
    for concept in found:
        captions = [concept.name, *concept.keywords]
        for artist in concept.drawings:
            split = split_of(artist, concept.name, test_artist)
            if split:
                cells = (
                    f"{artist}/{concept.code}.png",
                    concept.name,
                    concept.name,
                    json.dumps(captions, ensure_ascii=False),
                    json.dumps(half(concept), ensure_ascii=False),
                    concept.code,
                    artist,
                    split,
                )
                table.append(dict(zip(COLUMNS, cells, strict=True)))
    return table


def write_table(table: Iterable[Mapping[str, str]], path: Path) -> None:
    """Write rows as CSV."""
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(table)


def read_table(path: Path) -> list[dict[str, str]]:
    """Read what `write_table` wrote."""
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def pixel_vectors(paths: Iterable[Path], side: int = 8) -> np.ndarray:
    """Return drawings as unit vectors of `side` x `side` pixels about their mean, [n, 3 side^2]."""
    from PIL import Image

    vectors = []
    for path in paths:
        image = Image.open(path).convert("RGB").resize((side, side), Image.Resampling.BOX)
        vectors.append(np.asarray(image, np.float32).ravel())
    stacked = np.stack(vectors)
    stacked -= stacked.mean(axis=1, keepdims=True)
    return stacked / np.maximum(np.linalg.norm(stacked, axis=1, keepdims=True), 1e-6)


def nearest_top1(
    queries: np.ndarray, names: Sequence[str], known: np.ndarray, known_names: Sequence[str]
) -> float:
    """Return how often the nearest known vector has the query's name; of equal ones the first."""
    best = np.argmax(queries @ known.T, axis=1)
    return float(np.mean([known_names[i] == name for i, name in zip(best, names, strict=True)]))


def pixels_top1(path: Path, split: str = "test_artist", side: int = 8) -> float:
    """Return top-1 on a split of a table by the training drawing that is nearest in pixels."""
    table, folder = read_table(path), path.parent
    train, test = ([row for row in table if row["split"] == x] for x in ("train", split))
    vectors = [
        pixel_vectors((folder / row["path"] for row in each), side) for each in (test, train)
    ]
    names = [[row["label"] for row in each] for each in (test, train)]
    return nearest_top1(vectors[0], names[0], vectors[1], names[1])


def fetch(folder: Path, sets: Mapping[str, Drawn]) -> Path:
    """Install the packages below a folder by npm, and return where they lie."""
    if not shutil.which("npm"):
        sys.exit(
            "error: the drawings are packages of npm; install npm (Debian: apt-get install npm)"
        )
    packages = [*(drawn.package for drawn in sets.values()), _NAMES]
    quiet = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-save", "--loglevel=error"]
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        ["npm", "install", *quiet, "--prefix", str(folder), *packages],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        sys.exit(f"error: npm cannot install {', '.join(packages)}: {why[0]}")
    return folder / "node_modules"


def read_concepts(modules: Path, sets: Mapping[str, Drawn]) -> list[Concept]:
    """Read the packages."""

    def read(name: str) -> Any:
        return json.loads((modules / name).read_text("utf-8"))

    own = {name: drawn for name, drawn in sets.items() if not name.endswith(_OUTLINED)}
    where = {artist: drawn.package.rpartition("@")[0] for artist, drawn in own.items()}
    groups = read("emojibase-data/meta/groups.json")["groups"]
    return concepts(
        read("emojibase-data/en/data.json"),
        [int(number) for number, name in groups.items() if name in _LEFT_OUT],
        {artist: read(f"{place}/icons.json") for artist, place in where.items()},
        {artist: read(f"{place}/chars.json") for artist, place in where.items()},
    )


def framed(png: bytes, side: int = SIDE) -> bytes:
    """Return a drawing on white as PNG of `side` pixels, cut to what is drawn and centred.

    Artists leave margins of different widths; a drawing is to be known by its shape.
    """
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    drawn = np.any(np.asarray(image) < _PAPER, axis=-1)
    box = Image.fromarray(drawn).getbbox() or (0, 0, *image.size)
    width, height = box[2] - box[0], box[3] - box[1]
    most = max(width, height)
    square = Image.new("RGB", (most, most), "white")
    square.paste(image.crop(box), ((most - width) // 2, (most - height) // 2))
    out = io.BytesIO()
    square.resize((side, side), Image.Resampling.BICUBIC).save(out, "PNG")
    return out.getvalue()


def rasterise(found: Sequence[Concept], folder: Path, side: int = SIDE) -> int:
    """Draw what is not there yet as PNG on white; return how many."""
    try:
        cairosvg = importlib.import_module("cairosvg")
    except (ImportError, OSError) as error:  # OSError: there is no cairo library
        sys.exit(f"error: drawing needs `pip install cairosvg` and the cairo library: {error}")
    size = {"output_width": 2 * side, "output_height": 2 * side, "background_color": "white"}
    count = 0
    for concept in found:
        for artist, text in concept.drawings.items():
            path = folder / artist / f"{concept.code}.png"
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(framed(cairosvg.svg2png(bytestring=text.encode(), **size), side))
            count += 1
    return count


def joins(artist: str, which: str) -> bool:
    """Return whether a set is among those of a name in SETS."""
    if which == "three":  # artists, beside the one held out
        return artist in ARTISTS
    return which == "all" or not artist.endswith(_OUTLINED)


class Tables(NamedTuple):
    """The CSV files of drawings one of whose artists is held out."""

    captions: Mapping[str, Path]  # by what is trained on, one of SETS
    splits: Mapping[str, Path]  # the rows of a split alone, whose names are then all the classes


def tables(folder: Path, test_artist: str) -> Tables:
    """Return where the tables lie."""
    name = f"captions-{test_artist}"
    splits = {split: folder / f"{split}-{test_artist}.csv" for split in SPLITS[1:]}
    ends = dict(zip(SETS, ("", "-drawn", "-three"), strict=True))
    return Tables({x: folder / f"{name}{end}.csv" for x, end in ends.items()}, splits)


def write(folder: Path, test_artists: Sequence[str]) -> None:
    """Fetch, draw, and write the tables of each held-out artist, and the licences."""
    start = time.perf_counter()
    sets = ARTISTS | FURTHER
    found = read_concepts(fetch(folder / "npm", sets), sets)
    count = rasterise(found, folder)
    lines = [f"{name}: {x.maker}, {x.licence} (npm: {x.package})\n" for name, x in sets.items()]
    names = f"names and keywords: Unicode CLDR, Unicode-3.0 (npm: {_NAMES}, MIT)\n"
    (folder / "LICENCES.txt").write_text("".join([*lines, names]))
    called = {concept.name: half(concept) for concept in found}
    (folder / NAMES).write_text(json.dumps(called, ensure_ascii=False, indent=1), "utf-8")
    print(
        f"{len(found):,} concepts; drew {count:,} in {time.perf_counter() - start:.0f} s: {folder}"
    )
    for artist in test_artists:
        files = tables(folder, artist)
        table = rows(found, artist)
        for which, path in files.captions.items():
            write_table((row for row in table if joins(row["artist"], which)), path)
        for split, path in files.splits.items():
            write_table((row for row in table if row["split"] == split), path)
        counts = [f"{s} {sum(row['split'] == s for row in table):,}" for s in SPLITS]
        print(f"{files.captions['all'].name}: {', '.join(counts)}")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--test-artist", nargs="+", default=["twemoji"], choices=ARTISTS)
    args = parser.parse_args(argv)
    write(args.folder, args.test_artist)


if __name__ == "__main__":
    main()
