# SPDX-License-Identifier: Apache-2.0
"""`sweep plan`: the manifest of a sweep and its price."""

import dataclasses
import sys
from pathlib import Path

from vit_jax.analysis.tables import format_flops
from vit_jax.cli import options, sweep_file
from vit_jax.cli.options import Options, flag
from vit_jax.cli.sweep_file import SweepFile
from vit_jax.durations import format_duration
from vit_jax.errors import UserError
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps import queue
from vit_jax.sweeps.grid import Overrides
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.price import Device, find_device


@dataclasses.dataclass(kw_only=True)
class Plan(Options):
    """Prints one JSON line for each run of FILE, and on standard error what all of them cost.

    Makes no array and reads no image. --config.FIELD=VALUE sets a field of all runs.
    """

    file: Path = flag(Path(), "a file of configs/sweeps", "[FILE]", ask=sweep_file.NO_FILE)
    out: Path | None = flag(None, "write the lines to DIR/manifest.jsonl", "DIR")
    device: str = flag(
        "here",
        "by which time is estimated: v4, v5e, v5p, v6e, H100, or the FLOP/s that training reaches, "
        "such as 2e12",
    )
    num_devices: int = flag(1, "devices that share each run", least=1)
    price: float | None = flag(None, "of a device and hour, any currency")


def plan(given: Plan, extra: Overrides) -> None:
    """Print the points as JSON lines, and their total on standard error."""
    file = sweep_file.read(given.file)
    device = find_device(given.device, given.num_devices)
    drawn = file.search is not None
    points = draw(file, device, extra) if drawn else sweep_file.points(file, device, extra)
    for point in points:
        print(point_lib.to_line(point))
    if given.out is not None:
        if drawn:
            raise UserError(f"{file.path} is a search: its points come up as it runs; drop --out")
        write(given.out, points)
    print(total(points, device, given.price), file=sys.stderr)
    if drawn:
        print("(of a search: trials drawn at random, all run to their end)", file=sys.stderr)


def draw(file: SweepFile, device: Device, extra: Overrides) -> list[Point]:
    """Return as many points as a search makes, drawn at random: what it would cost."""
    package = queue.optuna()
    study = package.create_study(sampler=package.samplers.RandomSampler(seed=0))
    overrides = [propose(file, study.ask(), extra) for _ in range(file.trials)]
    names = point_lib.names(overrides)
    return [
        sweep_file.make(file, each, name, device)
        for each, name in zip(overrides, names, strict=True)
    ]


def propose(file: SweepFile, trial: object, extra: Overrides) -> Overrides:
    """Return the overrides that a search makes of an Optuna trial."""
    assert file.search is not None
    with sweep_file.running(f"{file.path}: search()"):
        return {**file.search(trial), **extra}


def write(place: Path, points: list[Point]) -> None:
    """Write the manifest, and print what is new in it."""
    place.mkdir(parents=True, exist_ok=True)
    known = set()
    if (place / point_lib.MANIFEST).exists():
        known = {point.run for point in point_lib.read_manifest(place)}
    point_lib.write_manifest(place, points)
    runs = {point.run for point in points}
    if known and known != runs:
        print(
            f"{place / point_lib.MANIFEST}: {len(runs - known)} runs are new, "
            f"{len(known - runs)} are no longer in it (their directories stay)",
            file=sys.stderr,
        )


def total(points: list[Point], device: Device, price: float | None) -> str:
    """Return the cost of all points in one line."""
    flops = sum(point.flops for point in points)
    seconds = [sum(each) for each in zip(*(p.seconds for p in points if p.seconds), strict=True)]
    hours = [each * device.count / 3600 for each in seconds]
    money = ""
    if price is not None:
        money = f", {_span([f'{each * price:,.2f}' for each in hours])} at {price:g} an hour"
    devices = device.name if device.count == 1 else f"{device.count} x {device.name}"
    rates = _span([f"{rate:.2g}" for rate in device.flops_per_second])
    return (
        f"{len(points)} runs, {format_flops(flops)}; about "
        f"{_span([format_duration(each) for each in seconds])} one after the other on {devices} at "
        f"{rates} FLOP/s each: {_span([f'{each:,.3g}' for each in hours])} device-hours{money}"
    )


def _span(texts: list[str]) -> str:
    """Write a least and a most, once where they read the same."""
    return " to ".join(dict.fromkeys(texts))


main = options.verb(Plan, plan, sweep_file.read_options)
