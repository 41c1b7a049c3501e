# SPDX-License-Identifier: Apache-2.0
"""Images per second of the input pipeline, JPEGs to uint8 batches, in turns with its peers.

    python -m benchmarks.input_pipeline

JPEG files beside tf.data, then the same in every format that is read, on the disk and from an
emulated bucket, beside five other loaders. Peers run if they are installed, best in a virtual
environment of its own:
`pip install -r locks/dev.txt tensorflow-cpu webdataset torch torchvision datasets`.
"""

import argparse
import contextlib
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks import photos, pipeline_ours, pipeline_tfdata, record, stored_pipeline, turns

_PEER = "tf.data decode_and_crop"
_TRIED = {"autotune": {"autotune": True}, "one call a core": {"autotune": False}}


def measure(
    folder: Path, batch: int, batches: int, rounds: int, workers: Sequence[int], peer: bool
) -> list[record.Row]:
    """Measure the photographs with each number of workers, all sides in turns."""
    sizes = {"batch_size": batch, "batches": batches}
    name = f"folder:{folder}"
    with contextlib.ExitStack() as stack:
        ours = [
            stack.enter_context(turns.Side(pipeline_ours.make, name=name, **sizes, workers=count))
            for count in workers
        ]
        peers = []
        try:
            for options in _TRIED.values() if peer else ():
                side = turns.Side(pipeline_tfdata.make, folder=str(folder), **sizes, **options)
                peers.append(stack.enter_context(side))
        except turns.Missing as error:
            print(f"{error}; for the peer: pip install tensorflow-cpu")
        load = os.getloadavg()[0]
        done = turns.alternate([*ours, *peers], rounds)
    best = turns.fastest(done[len(ours) :]) if peers else []
    works = {
        f"500x375 JPEG to 224x224, inception crop, batch={batch}, "
        + (f"{count} workers" if count else "threads"): turn
        for count, turn in zip(workers, done, strict=False)
    }
    return _rows(works, best, load)


def _rows(
    works: Mapping[str, Sequence[turns.Turn]], best: Sequence[turns.Turn], load: float
) -> list[record.Row]:
    rows = []
    for work, turn in works.items():
        rate = turns.images_per_second(turn)
        if not best:
            rows.append(record.Row(work=work, unit="images/s", ours=rate, load=load))
            continue
        ratios = turns.ratios(turn, best)
        rows.append(
            record.Row(
                work=work,
                unit="images/s",
                ours=rate,
                peer=_PEER,
                peer_value=turns.images_per_second(best),
                ratio=statistics.median(ratios),
                ratio_range=(min(ratios), max(ratios)),
                cpu_ratio=turns.cpu_ratio(turn, best),
                peer_settings="; ".join(_TRIED),
                load=load,
            )
        )
    return rows


def measure_digits(batches: int, rounds: int) -> record.Row:
    """Measure the digits' stream alone."""
    load = os.getloadavg()[0]
    with turns.Side(pipeline_ours.make_digits, batches=batches) as side:
        (done,) = turns.alternate([side], rounds)
    rate = turns.images_per_second(done)
    return record.Row(work="digits, 8x8, batch=128", unit="images/s", ours=rate, load=load)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.input_pipeline")
    parser.add_argument("--images", type=int, default=1500, help="files made for it")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--batches", type=int, default=30, help="in a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--workers", type=int, nargs="+", default=[0, record.num_cores()], help="0: threads alone"
    )
    parser.add_argument("--peer", choices=("installed", "none"), default="installed")
    kinds = stored_pipeline.FORMATS
    parser.add_argument("--formats", nargs="*", choices=kinds, default=kinds, help="beside files")
    parser.add_argument("--only", choices=("files", "disk", "bucket"), help="a part of it")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        size = photos.write_photos(Path(folder), args.images)
        print(f"{args.images} files of {size / 1e3:.0f} kB on average")
        peer = args.peer == "installed"
        sizes = (args.batch, args.batches, args.rounds, args.workers, peer)
        rows = []
        if args.only in (None, "files"):
            rows += measure(Path(folder), *sizes)
            rows.append(measure_digits(args.batches, args.rounds))
        if args.formats and args.only != "files":
            stored_pipeline.write(Path(folder))
            places = stored_pipeline.PLACES if args.only is None else (args.only,)
            rows += stored_pipeline.measure(Path(folder), places, args.formats, *sizes)
    peers = ("tensorflow", "tensorflow-cpu", "webdataset", "torch", "torchvision", "datasets")
    versions = turns.installed(*peers) if rows and rows[0].peer else {}
    record.report(rows, args.out, versions)


if __name__ == "__main__":
    main()
