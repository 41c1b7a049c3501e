# SPDX-License-Identifier: Apache-2.0
"""Which data a run reads: saved with every checkpoint, compared at every start."""

import contextlib
import csv
import io
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from vit_jax import data
from vit_jax.checkpoints.manifest import raising_inaccessible
from vit_jax.config.tree import Config
from vit_jax.data import account
from vit_jax.data.sources import look, partition
from vit_jax.data.sources.base import account_of, bands_of
from vit_jax.process import waiting
from vit_jax.storage import files

KEY = "data"
SPLITS = "splits.csv"
_SAMPLES = 16  # examples of a split whose contents are compared


def describe(train: data.Source, evals: Mapping[str, Mapping[str, data.Source]]) -> dict[str, Any]:
    """Return what `changes` compares, by split.

    Raises Inaccessible: the operating system cannot read the data.
    """
    splits = {"train": train} | {
        f"evals.{name}.{split}".rstrip("."): source
        for name, sources in evals.items()
        for split, source in sources.items()
    }
    return {split: _describe(source) for split, source in splits.items()}


@raising_inaccessible
def _describe(source: data.Source) -> dict[str, Any]:
    """Return name, number of examples, digest of file names, and checksums of a few examples.

    The checksum of an unreadable example is "". And the account of the dataset, {} for none.
    """
    chosen = np.unique(np.linspace(0, len(source) - 1, _SAMPLES).astype(int)).tolist()
    sample = [_crc32(source, index) for index in chosen]
    counted = account_of(source)
    return {
        "name": source.name,
        "examples": len(source),
        "digest": source.digest(),
        "sample": sample,
        "account": {} if counted is None else counted.to_json(),
    }


def _crc32(source: data.Source, index: int) -> str:
    try:
        example = source.read(index)
    except (ValueError, OSError):
        return ""
    total = zlib.crc32(example["image"])
    for name in source.spec:
        total = zlib.crc32(np.asarray(example[name]).tobytes(), total)
    for caption in example.get("captions", ()):
        total = zlib.crc32(caption.encode(), total)
    return f"{total:08x}"


def changes(
    saved: Mapping[str, Any], class_names: Sequence[str], splits: Mapping[str, Any]
) -> list[str]:
    """List the differences between a checkpoint's data and the present data.

    Splits of another name are left to the comparison of configs. Checkpoints of earlier versions
    hold class names alone.

    Args:
        saved: the checkpoint's metadata.
        class_names: of the present training split.
        splits: `describe` of the present data.
    """
    lines = []
    now = list(class_names)
    before = saved.get("class_names", now)
    same_name = _name(saved.get(KEY, {})) in ("", _name(splits))
    if same_name and before != now:
        pairs = zip(before, now, strict=False)
        first = next((f"{a!r} is now {b!r}" for a, b in pairs if a != b), "")
        lines.append(f"classes: {first or f'{len(before)} before, {len(now)} now'}")
    for split, here in splits.items():
        there = saved.get(KEY, {}).get(split)
        if there is None or _label(there["name"]) != _label(here["name"]):
            continue
        if there["examples"] != here["examples"]:
            lines.append(
                f"{split}: {there['examples']:,} examples before, {here['examples']:,} now"
            )
        elif there["digest"] != here["digest"]:
            lines.append(f"{split}: other files than before (their names, or sizes of shards)")
        elif any(a != b for a, b in _pairs(there, here) if a and b):
            lines.append(f"{split}: files of the same names and other contents (image or label)")
        else:
            continue
        # What is left out says where examples went; how many are used has been told.
        counted = (line for line in _counted(there, here) if " left out " in line)
        lines += [line for line in counted if line not in lines]
    return lines


def other_files(saved: Mapping[str, Any], splits: Mapping[str, Any]) -> list[str]:
    """List what is counted otherwise than before, in the datasets of which no split changed."""
    lines: list[str] = []
    for split, here in splits.items():
        there = saved.get(KEY, {}).get(split)
        if there is not None and _label(there["name"]) == _label(here["name"]):
            lines += [line for line in _counted(there, here) if line not in lines]
    return lines


def _counted(there: Mapping[str, Any], here: Mapping[str, Any]) -> list[str]:
    return sorted(account.changes(there.get("account", {}), here.get("account", {})))


def _pairs(there: Mapping[str, Any], here: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Pair the checksums of equal examples."""
    return zip(there.get("sample", ()), here["sample"], strict=False)


def _name(splits: Mapping[str, Any]) -> str:
    return _label(splits.get("train", {}).get("name", ""))


def _label(name: str) -> str:
    """Return the name of a split, for a folder only "[train]": folders may move."""
    folder, bracket, split = name.rpartition("[")
    return f"{bracket}{split}" if data.short_name(folder) != folder else name


def moved(saved: Mapping[str, Any], splits: Mapping[str, Any]) -> list[str]:
    """List the config fields of folders that moved; `changes` compares their contents."""
    fields = {"train": "data.name"}
    return [
        fields.get(split, f"{split}.dataset")
        for split, here in splits.items()
        if (there := saved.get(KEY, {}).get(split)) is not None
        and there["name"] != here["name"]
        and _label(there["name"]) == _label(here["name"])
    ]


@look.once()
def write_splits(name: str, source: data.Source, path: Path) -> None:
    """Write which image of a dataset is in which split, where those were drawn; process 0 alone."""
    if not source.drawn or jax.process_index() or (path / SPLITS).exists():
        return
    sources: dict[str, Any] = {}
    captioned = data.has_captions(source)
    captions = data.Captions.NEEDED if captioned else data.Captions.UNREAD
    how = {"captions": captions, "bands": bands_of(source)}
    for split in partition.SPLITS:
        with contextlib.suppress(data.SplitError):  # of classes of one or two images
            sources[split] = data.open_source(name, split=split, **how)
    of_source = getattr(source, "columns", tuple)() or ("path", "label")
    columns = (*of_source, *(["captions"] if captioned else []), "split")
    lines = [(*row, split) for split, each in sources.items() for row in each.rows()]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *lines])
    files.write(path / SPLITS, text.getvalue())


def warn_overlap(cfg: Config, name: str, train: data.Source, source: data.Source) -> None:
    """Warn of an evaluation that reads images on which the run trains."""
    here, there = cfg.evals[name].split, cfg.data.train_split
    found = account_of(train)
    dataset = cfg.evals[name].dataset or cfg.data.name
    if not partition.same_draw(dataset, cfg.data.name):
        if not (getattr(train, "drawn", False) or getattr(source, "drawn", False)):
            return
        what = f"{here} is of another draw of splits than the run's {there}, and has images of it"
    elif partition.overlaps(here, there, found.used if found else {}):
        what = f"{here} has images of {there}"
    else:
        return
    if waiting.is_first():
        print(
            f"warning: evals.{name}: {what}, on which the run trains: "
            "what it measures there is no validation",
            flush=True,
        )
