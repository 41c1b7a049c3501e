# SPDX-License-Identifier: Apache-2.0
"""The photographs as tar shards, Parquet files and ArrayRecord, on the disk and in a bucket.

WebDataset and tf.data take turns with all of them, each with the format that is its own: tar shards
and TFRecord. tf.data cannot be pointed at the emulated bucket. Called by `input_pipeline`.
"""

import contextlib
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import pipeline_ours, pipeline_tfdata, pipeline_webdataset, record, turns
from tests import shards
from tests.bucket import Bucket

FORMATS = ("tar", "parquet", "arrayrecord")
_LATENCY_MS = 20
_SHARDS = 8
_ROW_GROUP = 100  # rows, as the Hub writes them
_DECODERS = {"Pillow": False, "simplejpeg and OpenCV": True}
_TRIED = {"autotune": True, "one call a core": False}


def write(folder: Path) -> None:
    """Write what is below folder/train as shards of each format beside it."""
    from vit_jax import data
    from vit_jax.data.sources import copy_records

    source = data.open_source(f"folder:{folder}")
    shards.as_tars(source, folder / "tar", "train", _SHARDS)
    shards.as_parquet(source, folder / "parquet", "train", _SHARDS, _ROW_GROUP)
    copy_records.write(folder / "photos", {"train": source}, record.num_cores(), lambda _: None)


def measure(
    folder: Path,
    formats: Sequence[str],
    batch: int,
    batches: int,
    rounds: int,
    workers: Sequence[int],
    peer: bool,
) -> list[record.Row]:
    """Measure each format with each number of workers, on the disk, then in a bucket."""
    sizes = {"batch_size": batch, "batches": batches}
    with Bucket(latency_ms=_LATENCY_MS) as bucket:
        os.environ.update(bucket.env)  # of the sides' processes
        for kind in ("tar", "parquet", "photos"):
            bucket.put_tree(folder / kind, f"data/{kind}")
        rows = []
        for place, root, tars in (
            ("on the disk", str(folder), f"{folder}/tar"),
            (f"in a bucket of {_LATENCY_MS} ms", "gs://data", f"{bucket.url}/data/tar"),
        ):
            names = {
                "tar": {"name": f"tar:{root}/tar/mine-train-*.tar"},
                "parquet": {"name": f"parquet:{root}/parquet/train-*.parquet"},
                "arrayrecord": {"name": "photos", "data_dir": root},
            }
            with contextlib.ExitStack() as stack:
                works = {
                    f"{kind} {place}, batch={batch}, "
                    + (f"{count} workers" if count else "threads"): stack.enter_context(
                        turns.Side(pipeline_ours.make, **names[kind], **sizes, workers=count)
                    )
                    for kind in formats
                    for count in workers
                }
                urls = [f"{tars}/mine-train-{i:03}.tar" for i in range(_SHARDS)]
                local = str(folder) if place == "on the disk" else ""
                started = _peers(urls, local, sizes) if peer else ()
                peers = {name: stack.enter_context(side) for name, side in started}
                load = os.getloadavg()[0]
                done = turns.alternate([*works.values(), *peers.values()], rounds)
            ours = dict(zip(works, done, strict=False))
            rows += _rows(ours, dict(zip(peers, done[len(works) :], strict=True)), load)
    return rows


def _peers(
    urls: Sequence[str], folder: str, sizes: Mapping[str, int]
) -> Iterator[tuple[str, turns.Side]]:
    """Start the peers that are installed."""
    try:
        for name, fast in _DECODERS.items():
            yield (
                f"webdataset with {name}",
                turns.Side(pipeline_webdataset.make, urls=urls, fast=fast, **sizes),
            )
        for name, autotune in _TRIED.items() if folder else ():
            yield (
                f"tf.data, {name}",
                turns.Side(
                    pipeline_tfdata.make, folder=folder, autotune=autotune, records=True, **sizes
                ),
            )
    except turns.Missing as error:
        print(f"{error}; for the peers: pip install webdataset torch tensorflow-cpu")


def _rows(
    ours: Mapping[str, Sequence[turns.Turn]],
    peers: Mapping[str, Sequence[turns.Turn]],
    load: float,
) -> list[record.Row]:
    rates = {name: turns.images_per_second(done) for name, done in peers.items()}
    print(", ".join(f"{name} {rate:.0f}" for name, rate in rates.items()))
    names = dict.fromkeys(name.split()[0].strip(",") for name in peers)
    rows = []
    for work, turn in ours.items():
        rate = turns.images_per_second(turn)
        row = record.Row(work=work, unit="images/s", ours=rate, load=load)
        if peers:
            best = turns.fastest(list(peers.values()))
            ratios = turns.ratios(turn, best)
            row = record.Row(
                work=work,
                unit="images/s",
                ours=rate,
                peer=" or ".join(names),
                peer_value=turns.images_per_second(best),
                ratio=statistics.median(ratios),
                ratio_range=(min(ratios), max(ratios)),
                cpu_ratio=turns.cpu_ratio(turn, best),
                peer_settings="; ".join(f"{name} {rate:.0f}" for name, rate in rates.items()),
                load=load,
            )
        rows.append(row)
    return rows
