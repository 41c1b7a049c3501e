# SPDX-License-Identifier: Apache-2.0
"""Sweep files: what is swept, read and checked, and turned into points."""

import contextlib
import dataclasses
import difflib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from vit_jax import config as config_lib
from vit_jax import errors
from vit_jax.cli import config_files, options
from vit_jax.cli import flags as cli_flags
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.sweeps import point as point_lib
from vit_jax.sweeps.grid import Overrides
from vit_jax.sweeps.point import Point
from vit_jax.sweeps.price import Device, price, seconds

Kind = TypeVar("Kind", bound=options.Options)
NO_FILE = "which sweep? name a FILE: one of configs/sweeps, or one of your own"
_KNOWN = ("CONFIG", "METRIC", "TRIALS", "SAMPLER", "PRUNER")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SweepFile:
    """The contents of a sweep file.

    Attributes:
        path: the file.
        config: CONFIG, the base file of all points that name none.
        metric: METRIC, what is compared at the end: "<evaluation>/loss" or "/top1".
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
        return not self.metric.endswith("loss")


def read(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises UserError: no such file, one that cannot be read, or one without what a sweep needs.
    """
    if not path.is_file():
        names = config_files.names(config_files.SWEEPS)
        if path.stem not in names:
            raise errors.unknown("sweep file", path.stem, names)
        path = config_files.FOLDER / config_files.SWEEPS / f"{path.stem}.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    with running(f"{path} cannot be read"):
        spec.loader.exec_module(module)
    names = vars(module)
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
    return SweepFile(
        path=path,
        config=names["CONFIG"],
        metric=names["METRIC"],
        sweep=names.get("sweep"),
        search=names.get("search"),
        trials=names.get("TRIALS", 0),
        sampler=names.get("SAMPLER"),
        pruner=names.get("PRUNER"),
    )


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

    Args:
        file: the sweep.
        device: by which their time is estimated, if it is.
        extra: fields set in all of them.

    Raises UserError: no points, or one that makes no config.
    """
    assert file.sweep is not None
    with running(f"{file.path}: sweep()"):
        listed = [{**overrides, **extra} for overrides in file.sweep()]
    if not listed:
        raise UserError(f"{file.path}: sweep() yields no overrides")
    names = point_lib.names(listed)
    made = [make(file, o, n, device) for o, n in zip(listed, names, strict=True)]
    return list({point.run: point for point in reversed(made)}.values())[::-1]


def make(file: SweepFile, overrides: Overrides, name: str, device: Device | None) -> Point:
    """Return the point of some overrides; raises UserError: they make no config."""
    rest = dict(overrides)
    name, config = rest.pop("name", name), rest.pop("config", file.config)
    try:
        cfg = read_config(config, rest)
        _check_metric(cfg, file.metric)
        cost = price(cfg)
    except UserError as error:
        raise UserError(f"{file.path}, point {name}: {error}") from error
    return Point(
        run=point_lib.run_hash(cfg),
        name=name,
        config=config,
        overrides=rest,
        metric=file.metric,
        seconds=None if device is None else seconds(cost, device),
        **cost._asdict(),
    )


def read_config(config: str, overrides: Overrides) -> Config:
    """Read a base file with overrides, as `main.py` will."""
    argv = ["main.py", *point_lib.arguments(config, overrides)]
    return cli_flags.read_config(argv)


def _check_metric(cfg: Config, metric: str) -> None:
    measured = list(config_lib.metric_periods(cfg))
    if metric not in measured:
        raise errors.unknown("METRIC", metric, measured)


def read_options(cls: type[Kind], argv: Sequence[str]) -> tuple[Kind, Overrides]:
    """Read a command line, and the fields that `--config.FIELD=VALUE` sets in all runs."""
    words = [re.fullmatch(r"--config\.([\w.]+)=(.*)", word, flags=re.DOTALL) for word in argv]
    rest = [word for word, found in zip(argv, words, strict=True) if not found]
    (given,) = options.read_options(cls, rest)
    return given, {word[1]: word[2] for word in words if word}
