# SPDX-License-Identifier: Apache-2.0
"""`sweep plan`: a sweep's file, read and turned into points; its manifest and its price."""

import contextlib
import dataclasses
import difflib
import re
import runpy
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vit_jax import config as config_lib
from vit_jax import errors, optim
from vit_jax.cli.parsing import flags as cli_flags
from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.cost.tables import align, format_flops
from vit_jax.errors import UserError
from vit_jax.settings import config_files, measures
from vit_jax.settings.durations import format_duration
from vit_jax.sweeps import in_bucket, queue
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps.grid import Overrides
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.price import Device, find_device, price

Kind = TypeVar("Kind", bound=options.Options)
NO_FILE = "which sweep? name a FILE: one of configs/sweeps, or one of your own"
_KNOWN = ("CONFIG", "METRIC", "TRIALS", "SAMPLER", "PRUNER")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFile:
    """The contents of a sweep file.

    Attributes:
        config: CONFIG, the base file of all points that name none.
        metric: METRIC, what is compared at the end: "<evaluation>/loss", or an accuracy, "/top1".
        sweep: yields each point's overrides; None for a search.
        search: makes overrides from an Optuna trial; None for a list.
        trials: TRIALS, how many a search makes.
        sampler, pruner: SAMPLER and PRUNER, Optuna's; its own defaults where there are none.
    """

    path: Path
    config: str
    metric: str
    sweep: Callable[[], Iterable[Overrides]] | None
    search: Callable[[Any], Overrides] | None
    trials: int
    sampler: Any
    pruner: Any

    @property
    def maximize(self) -> bool:
        """Whether more is better."""
        return measures.is_better_larger(self.metric)


@dataclasses.dataclass(kw_only=True)
class PlanSweep(Options):
    """Prints a row for each run of FILE, and on standard error what all of them cost.

    Makes no array and reads no image. --config.FIELD=VALUE sets a field of all runs. A file or a
    pipe gets one JSON line a run.
    """

    file: Path = flag(Path(), "a file of configs/sweeps", "[FILE]", ask=NO_FILE)
    out: Path | None = flag(None, "write the lines to DIR/manifest.jsonl", "DIR")
    device: str = flag("here", "estimates time: v4, v5e, v5p, v6e, H100, or FLOP/s such as 2e12")
    num_devices: int = flag(1, "devices that share each run", least=1)
    price: float | None = flag(None, "of a device and hour, any currency")
    json: bool | None = flag(None, "JSON lines, not a table; by default where it is no terminal")


def plan(given: PlanSweep, extra: Overrides) -> None:
    """Print the points as JSON lines, and their total on standard error."""
    file = read(given.file)
    device = find_device(given.device, given.num_devices)
    drawn = file.search is not None
    found = draw(file, device, extra) if drawn else points(file, device, extra)
    as_json = not sys.stdout.isatty() if given.json is None else given.json
    print("\n".join(map(point_lib.to_line, found) if as_json else table(found)))
    if given.out is not None:
        if drawn:
            raise UserError(f"{file.path} is a search: its points come up as it runs; drop --out")
        write(in_bucket.opened(given.out), found)
    print(total(found, device, given.price), file=sys.stderr)
    if drawn:
        print("(of a search: trials drawn at random, all run to their end)", file=sys.stderr)


def table(points: Sequence[Point]) -> list[str]:
    """Lay the points out in rows: what sets a run apart, its size and what it takes."""
    rows = [
        [
            point.name,
            f"{point.params:,}",
            f"{point.steps:,}",
            f"{point.examples:,}",
            format_flops(point.flops),
            _span(map(format_duration, point.seconds or ())),
        ]
        for point in points
    ]
    header = ["run", "parameters", "steps", "examples", "FLOPs", "time"]
    return align(header, rows, right=[1, 2, 3, 4])


def draw(file: SweepFile, device: Device, extra: Overrides) -> list[Point]:
    """Return as many points as a search makes, drawn at random: what it would cost."""
    package = queue.optuna()
    study = package.create_study(sampler=package.samplers.RandomSampler(seed=0))
    overrides = [propose(file, study.ask(), extra) for _ in range(file.trials)]
    return make_all(file, overrides, device)


def propose(file: SweepFile, trial: object, extra: Overrides) -> Overrides:
    """Return the overrides that a search makes of an Optuna trial."""
    assert file.search is not None
    with running(f"{file.path}: search()"):
        return {**file.search(trial), **extra}


def write(place: Path, points: list[Point]) -> None:
    """Write the manifest, and print what is new in it."""
    place.mkdir(parents=True, exist_ok=True)
    file, known = place / point_lib.MANIFEST, set()
    if file.exists():
        known = {point.run for point in point_lib.read_manifest(place)}
    point_lib.write_manifest(place, points)
    runs = {point.run for point in points}
    if known and known != runs:
        gone = f"{len(known - runs)} are no longer in it (their directories stay)"
        print(f"{file}: {len(runs - known)} runs are new, {gone}", file=sys.stderr)


def total(points: list[Point], device: Device, price: float | None) -> str:
    """Return the cost of all points in one line."""
    flops = sum(point.flops for point in points)
    seconds = [sum(each) for each in zip(*(p.seconds for p in points if p.seconds), strict=True)]
    hours = [each * device.count / 3600 for each in seconds]
    money = ""
    if price is not None:
        money = f", {_span([f'{each * price:,.2f}' for each in hours])} at {price:g} an hour"
    devices = device.name if device.count == 1 else f"{device.count} x {device.name}"
    speeds = sorted(flops / each / device.count for each in seconds if each)
    rates = _span([f"{rate:.2g}" for rate in speeds])
    time, hours = _span(map(format_duration, seconds)), _span([f"{x:,.3g}" for x in hours])
    return (
        f"{len(points)} runs, {format_flops(flops)}; about {time} one after the other on {devices} "
        f"at {rates} FLOP/s each: {hours} device-hours{money}"
    )


def _span(texts: Iterable[str]) -> str:
    """Write a least and a most, once where they read the same."""
    return " to ".join(dict.fromkeys(texts))


def read(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises UserError: no such file, one that cannot be read, or one without what a sweep needs.
    """
    if not path.is_file():
        names = config_files.names(config_files.SWEEPS)
        if path.stem not in names:
            raise errors.unknown("sweep file", path.stem, names)
        path = config_files.FOLDER / config_files.SWEEPS / f"{path.stem}.py"
    with running(f"{path} cannot be read"):
        names = runpy.run_path(str(path), run_name=path.stem)
    for name in names:
        near = difflib.get_close_matches(name, _KNOWN, n=1, cutoff=0.8)
        if name not in _KNOWN and near and name.isupper():
            raise UserError(f"{path}: {name} means nothing to a sweep; did you mean {near[0]}?")
    for name in ("CONFIG", "METRIC"):
        if not isinstance(names.get(name), str):
            example = {"CONFIG": "configs/vit_mu_digits.py", "METRIC": "val/loss"}[name]
            raise UserError(f'{path} lacks {name}, such as {name} = "{example}"')
    if ("sweep" in names) == ("search" in names):
        either = "sweep(), which yields overrides, or search(trial), which draws them by Optuna"
        raise UserError(f"{path} needs either {either}")
    if "search" in names and not (isinstance(names.get("TRIALS"), int) and names["TRIALS"] > 0):
        raise UserError(f"{path} lacks TRIALS, how many runs its search makes, such as TRIALS = 30")
    given: dict[str, Any] = {x.lower(): names.get(x) for x in (*_KNOWN, "sweep", "search")}
    return SweepFile(path=path, **given | {"trials": names.get("TRIALS", 0)})


@contextlib.contextmanager
def running(what: str) -> Iterator[None]:
    """Turn any error of a user's own file into a UserError that begins with `what`."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what}: {type(error).__name__}: {error}") from error


def points(file: SweepFile, device: Device | None, extra: Overrides) -> list[Point]:
    """Return the points of a list, each run once, in the file's order.

    `device` is what their time is estimated by, if it is; `extra` are fields set in all of them.

    Raises UserError: no points, or one that makes no config.
    """
    assert file.sweep is not None
    with running(f"{file.path}: sweep()"):
        listed = [{**overrides, **extra} for overrides in file.sweep()]
    if not listed:
        raise UserError(f"{file.path}: sweep() yields no overrides")
    made = make_all(file, listed, device)
    return list({point.run: point for point in reversed(made)}.values())[::-1]


def make_all(file: SweepFile, listed: Sequence[Overrides], device: Device | None) -> list[Point]:
    """Return a point for each of the overrides, named by what sets it apart."""
    named = zip(listed, point_lib.names(listed), strict=True)
    return [make(file, overrides, name, device) for overrides, name in named]


def make(file: SweepFile, overrides: Overrides, name: str, device: Device | None) -> Point:
    """Return the point of some overrides; raises UserError: they make no config."""
    rest = dict(overrides)
    name, config = rest.pop("name", name), rest.pop("config", file.config)
    try:
        cfg = cli_flags.read_config(["main.py", *point_lib.arguments(config, rest)])
        measured = list(config_lib.metric_periods(cfg))
        if file.metric not in measured:
            raise errors.unknown("METRIC", file.metric, measured)
        cost = price(cfg)
        before = optim.trunk(cfg.optim)[1] if cfg.optim.branch else 0
    except UserError as error:
        raise UserError(f"{file.path}, point {name}: {error}") from error
    return Point(
        run=point_lib.run_hash(cfg),
        name=name,
        config=config,
        overrides=rest,
        metric=file.metric,
        seconds=None if device is None else cost.seconds(device, before),
        **cost.fields(),
    )


def read_options(cls: type[Kind], argv: Sequence[str]) -> tuple[Kind, Overrides]:
    """Read a command line, and the fields that `--config.FIELD=VALUE` sets in all runs."""
    words = [re.fullmatch(r"--config\.([\w.]+)=(.*)", word, flags=re.DOTALL) for word in argv]
    rest = [word for word, found in zip(argv, words, strict=True) if not found]
    (given,) = options.read_options(cls, rest)
    return given, {word[1]: word[2] for word in words if word}


main = options.verb(PlanSweep, plan, read_options)
