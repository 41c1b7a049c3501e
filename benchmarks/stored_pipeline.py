# SPDX-License-Identifier: Apache-2.0
"""The photographs in every format that is read, on the disk and in a bucket, beside other loaders.

All peers take turns with all formats, each with what is its own: Grain reads the ArrayRecord files,
tf.data files and TFRecord, WebDataset tar shards, PyTorch's loader a list of files, a folder and,
through Hugging Face's datasets, Parquet, and a memory map JPEGs one behind the other. The fastest
of all in a round is what every format is compared with. In the emulated bucket there is WebDataset
alone: tf.data cannot be pointed at it, and the others read no bucket. Called by `input_pipeline`.
"""

import contextlib
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    pipeline_grain,
    pipeline_memmap,
    pipeline_ours,
    pipeline_tfdata,
    pipeline_torch,
    pipeline_webdataset,
    record,
    turns,
)
from tests import shards
from tests.bucket import Bucket

FORMATS = ("folder", "csv", "tar", "parquet", "arrayrecord")
PLACES = ("disk", "bucket")
IN_BUCKET = ("tar", "parquet", "arrayrecord")
PEERS = "Grain, tf.data, WebDataset, PyTorch or a memory map"
_LATENCY_MS = 20
_SHARDS = 8
_ROW_GROUP = 100  # rows, as the Hub writes them
_FAST = "simplejpeg and OpenCV"


def write(folder: Path) -> None:
    """Write what is below folder/train as shards of each format beside it, and list it."""
    from vit_jax import data
    from vit_jax.data.sources import copy_records

    source = data.open_source(f"folder:{folder}")
    shards.as_tars(source, folder / "tar", "train", _SHARDS)
    shards.as_parquet(source, folder / "parquet", "train", _SHARDS, _ROW_GROUP)
    copy_records.write(folder / "photos", {"train": source}, record.num_cores(), lambda _: None)
    paths = sorted(folder.glob("train/*/*.jpg"))
    lines = [f"{path.relative_to(folder)},{path.parent.name}\n" for path in paths]
    (folder / "labels.csv").write_text("path,label\n" + "".join(lines))


def names(root: str) -> dict[str, dict[str, str]]:
    """Return by format what `pipeline_ours.make` takes for what `write` wrote."""
    return {
        "folder": {"name": f"folder:{root}"},
        "csv": {"name": f"csv:{root}/labels.csv"},
        "tar": {"name": f"tar:{root}/tar/mine-train-*.tar"},
        "parquet": {"name": f"parquet:{root}/parquet/train-*.parquet"},
        "arrayrecord": {"name": "photos", "data_dir": root},
    }


def tars(root: str) -> list[str]:
    """List the tar shards that `write` wrote, paths or addresses."""
    return [f"{root}/tar/mine-train-{i:03}.tar" for i in range(_SHARDS)]


def peers(folder: str) -> dict[str, tuple[turns.Make, dict[str, Any]]]:
    """Return by name what each peer does with what `write` wrote, and with which settings.

    Each in its fastest setting of a first look. Slower were Pillow in place of the fast decoder,
    Grain's DataLoader and its threads, tf.data's TFRecord, `autotune` and `from_generator`,
    PyTorch's forked workers, ImageFolder and Hugging Face's datasets (NOTES.md).
    """
    return {
        "memory map of JPEGs": (pipeline_memmap.make, {"folder": folder}),
        "WebDataset": (pipeline_webdataset.make, {"urls": tars(folder), "decoder": _FAST}),
        "Grain, a worker a core": (
            pipeline_grain.make,
            {"folder": f"{folder}/photos", "decoder": _FAST, "workers": record.num_cores()},
        ),
        "tf.data of files, one call a core": (
            pipeline_tfdata.make,
            {"folder": folder, "autotune": False},
        ),
        "PyTorch of a list, spawn": (
            pipeline_torch.make,
            {"folder": folder, "kind": "list", "start": "spawn"},
        ),
    }


def measure(
    folder: Path,
    places: Sequence[str],
    formats: Sequence[str],
    batch: int,
    batches: int,
    rounds: int,
    workers: Sequence[int],
    peer: bool,
) -> list[record.Row]:
    """Measure each format with each number of workers, in each of some `PLACES`."""
    sizes = {"batch_size": batch, "batches": batches}
    beside = peers(str(folder)) if peer else {}
    rows = []
    if "disk" in places:
        rows += _rows("on the disk", names(str(folder)), formats, beside, sizes, rounds, workers)
    if "bucket" not in places or not set(formats) & set(IN_BUCKET):
        return rows
    with Bucket(latency_ms=_LATENCY_MS) as bucket:
        os.environ.update(bucket.env)  # of the sides' processes
        for kind in ("tar", "parquet", "photos"):
            bucket.put_tree(folder / kind, f"data/{kind}")
        urls = tars(f"{bucket.url}/data")
        beside = {
            key: (make, {**settings, "urls": urls})
            for key, (make, settings) in beside.items()
            if "urls" in settings
        }
        formats = [each for each in formats if each in IN_BUCKET]
        where = f"in a bucket of {_LATENCY_MS} ms"
        rows += _rows(where, names("gs://data"), formats, beside, sizes, rounds, workers)
    return rows


def _rows(
    where: str,
    stored: Mapping[str, dict[str, str]],
    formats: Sequence[str],
    beside: Mapping[str, tuple[turns.Make, dict[str, Any]]],
    sizes: Mapping[str, int],
    rounds: int,
    workers: Sequence[int],
) -> list[record.Row]:
    with contextlib.ExitStack() as stack:
        works = {
            f"{kind} {where}, batch={sizes['batch_size']}, "
            + (f"{count} workers" if count else "threads"): stack.enter_context(
                turns.Side(pipeline_ours.make, **stored[kind], **sizes, workers=count)
            )
            for kind in formats
            for count in workers
        }
        others = {name: stack.enter_context(side) for name, side in _started(beside, sizes)}
        load = os.getloadavg()[0]
        done = turns.alternate([*works.values(), *others.values()], rounds)
    theirs = dict(zip(others, done[len(works) :], strict=True))
    rates = {name: turns.images_per_second(each) for name, each in theirs.items()}
    settings = "; ".join(f"{name} {rate:.0f}" for name, rate in rates.items())
    print(settings.replace("; ", "\n"))
    rows = []
    for work, turn in zip(works, done, strict=False):
        row = record.Row(work=work, unit="images/s", ours=turns.images_per_second(turn), load=load)
        if theirs:
            rows.append(_beside(row, turn, list(theirs.values()), settings))
        else:
            rows.append(row)
    return rows


def _beside(
    row: record.Row,
    turn: Sequence[turns.Turn],
    theirs: Sequence[Sequence[turns.Turn]],
    settings: str,
) -> record.Row:
    best = turns.fastest(theirs)
    ratios = turns.ratios(turn, best)
    return record.Row(
        work=row.work,
        unit=row.unit,
        ours=row.ours,
        peer=PEERS if "memory map" in settings else "WebDataset",
        peer_value=turns.images_per_second(best),
        ratio=statistics.median(ratios),
        ratio_range=(min(ratios), max(ratios)),
        cpu_ratio=turns.cpu_ratio(turn, best),
        peer_settings=settings,
        load=row.load,
    )


def _started(
    beside: Mapping[str, tuple[turns.Make, dict[str, Any]]], sizes: Mapping[str, int]
) -> Iterator[tuple[str, turns.Side]]:
    """Start the peers that are installed."""
    for name, (make, settings) in beside.items():
        try:
            yield name, turns.Side(make, **settings, **sizes)
        except turns.Missing as error:
            print(f"{name}: {error}")
