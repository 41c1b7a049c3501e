# SPDX-License-Identifier: Apache-2.0
"""A few captioned photographs in a CSV file, and a tokenizer of their captions."""

import csv
import json
from pathlib import Path

from tests.photos import write_folder
from vit_jax.text import tokenizers, training

CLASSES = ("china", "flower", "sky")
SIZE = 300  # the tokenizer's ids, the fewest that there can be


def captions(name: str, i: int) -> list[str]:
    """Return the captions of image `i` of a class, of which one is some other images', too."""
    return [f"a photo of {name}", f"{name} seen from place {i}", f"number {i}: {name}"][: 1 + i % 3]


def write(root: Path, splits: dict[str, int] | None = None) -> Path:
    """Write images below `root`, and captions.csv with path, label, split, captions; return it."""
    splits = splits or {"train": 8, "val": 3}
    write_folder(root, splits, CLASSES)
    table = root / "captions.csv"
    with table.open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow(["path", "label", "split", "captions"])
        for split, count in splits.items():
            for name in CLASSES:
                for i in range(count):
                    texts = json.dumps(captions(name, i))
                    rows.writerow([f"{split}/{name}/{i}.jpg", name, split, texts])
    return table


def write_tokenizer(path: Path, context: int = 16) -> Path:
    """Write a tokenizer of `SIZE` ids at most; return its file."""
    texts = [text for name in CLASSES for i in range(8) for text in captions(name, i)]
    tokenizers.save(training.train(texts, SIZE, context=context), path)
    return path
