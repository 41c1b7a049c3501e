# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax sweep plan|run|status|report`: many runs of one question."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax import errors
from vit_jax.cli import flags, options
from vit_jax.cli.options import Options, flag
from vit_jax.errors import UserError

_HERE = Path()  # stands for an argument that is not given
_NO_FILE = "which sweep? name a FILE of configs/sweeps"
_NO_PLACE = "which sweep? name its DIR"


@dataclasses.dataclass(kw_only=True)
class Plan(Options):
    """Prints one JSON line for each run of FILE, and on standard error what all of them cost.

    Makes no array and reads no image. --config.FIELD=VALUE sets a field of all runs.
    """

    usage = "python -m vit_jax sweep plan FILE [flags]"
    file: Path = flag(_HERE, "a file of configs/sweeps", "[FILE]", ask=_NO_FILE)
    out: Path | None = flag(None, "write the lines to DIR/manifest.jsonl", "DIR")
    device: str = flag(
        "here",
        "by which time is estimated: v4, v5e, v5p, v6e, H100, or the FLOP/s that training reaches, "
        "such as 2e12",
    )
    num_devices: int = flag(1, "devices that share each run", least=1)
    price: float | None = flag(None, "of a device and hour, any currency")


@dataclasses.dataclass(kw_only=True)
class Run(Options):
    """Trains every run of FILE, or of the manifest in DIR, that has not finished.

    Start it as often and on as many machines as you like, with one shared DIR.
    --config.FIELD=VALUE sets a field of all runs of FILE. Exit status: 0 all have finished, 1 some
    failed, 75 stopped by a signal (the same command continues).
    """

    usage = "python -m vit_jax sweep run FILE|DIR [flags]"
    target: Path = flag(
        _HERE, "a file of configs/sweeps, or a manifest's", "[FILE|DIR]", ask=_NO_FILE
    )
    out: Path | None = flag(None, "where FILE's runs are kept", "DIR")
    workers: int = flag(1, "runs at a time on this machine", least=1)
    index: int | None = flag(None, "train line N of the manifest alone, counted from 0")


@dataclasses.dataclass(kw_only=True)
class Status(Options):
    """Shows what every run is doing: on a terminal until all have ended."""

    usage = "python -m vit_jax sweep status DIR [flags]"
    place: Path = flag(_HERE, "the sweep", "[DIR]", ask=_NO_PLACE)
    once: bool = flag(False, "print the table and end")


@dataclasses.dataclass(kw_only=True)
class Report(Options):
    """Fits scaling laws to the finished runs.

    Writes report.png, report.html and fits.json to DIR.
    """

    usage = "python -m vit_jax sweep report DIR [flags]"
    place: Path = flag(_HERE, "the sweep", "[DIR]", ask=_NO_PLACE)
    title: str = flag("", "of the page; by default the directory's name")


_VERBS: dict[str, type[Options]] = {"plan": Plan, "run": Run, "status": Status, "report": Report}


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if len(argv) > 1 and argv[1] in _VERBS:
        return options.run(_VERBS[argv[1]], argv[1:], sweep, _read)
    if len(argv) > 1 and argv[1] in ("-h", "--help"):
        for verb, cls in _VERBS.items():
            print(f"{verb:8}{(cls.__doc__ or '').splitlines()[0]}")
        print("\nusage: python -m vit_jax sweep VERB [--help] ...")
        return 0
    return flags.run(lambda: _refuse(argv), argv)


def _refuse(argv: Sequence[str]) -> None:
    if len(argv) < 2:
        raise UserError(f"sweep what? add one of: {', '.join(_VERBS)}")
    raise errors.unknown("sweep verb", argv[1], _VERBS)


def _read(cls: type[Options], argv: Sequence[str]) -> tuple[Options, dict[str, Any]]:
    """Read a command line, and the fields that `--config.FIELD=VALUE` sets in all runs."""
    extra = [word for word in argv if word.startswith("--config.")] if cls in (Plan, Run) else []
    (given,) = options.read_options(cls, [word for word in argv if word not in extra])
    # Late: help and mistakes are answered before jax is imported.
    from vit_jax.cli import sweep_file

    return given, sweep_file.extra_overrides(extra)


def sweep(given: Options, extra: dict[str, Any]) -> int:
    """Do what one of the four verbs asks for; returns the exit status."""
    match given:
        case Plan():
            from vit_jax.cli import sweep_plan

            return sweep_plan.plan(
                given.file, extra, given.out, given.device, given.num_devices, given.price
            )
        case Run():
            from vit_jax.cli import sweep_run

            return sweep_run.run(given.target, extra, given.out, given.workers, given.index)
        case Status():
            from vit_jax.cli import sweep_status

            return sweep_status.status(given.place, once=given.once)
        case Report():
            from vit_jax.cli import sweep_report

            return sweep_report.report(given.place, given.title)
    raise AssertionError(given)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
