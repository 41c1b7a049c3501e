# SPDX-License-Identifier: Apache-2.0
"""`vit_jax doctor`: does this machine train as it should? A line for each check."""

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vit_jax.cli.parsing import flags, options
from vit_jax.cli.parsing.options import ConfigOptions, flag
from vit_jax.cli.reports import check_machine
from vit_jax.cli.reports.check_machine import BROKEN, OK, WARNING, Finding
from vit_jax.errors import UserError


@dataclasses.dataclass(kw_only=True)
class Doctor(ConfigOptions):
    """Checks the install, the devices, a training step and the disk.

    With --config also whether that run fits them and its data can be read. Prints a line for each:
    ok, warning or broken, and what to do. Leaves nothing behind but compiled programs.

      vit_jax doctor
      vit_jax doctor --config=configs/vit_mu_digits.py --workdir=runs/digits

    Exit status: 0 nothing is broken, 1 something is, 2 bad usage.
    """

    config: str = flag("", "a run, with overrides such as --config.optim.lr=1e-3", "=FILE")
    workdir: Path = flag(Path(), "where runs are to be kept", "DIR")


def _read(cls: type[Doctor], argv: Sequence[str]) -> tuple[Doctor, Any]:
    """Read a command line whose --config may be left out: then there is no Config."""
    if flags.value_of("config", argv) is not None:
        return options.read_config(cls, argv)
    return *options.read_options(cls, argv), None


def doctor(given: Doctor, cfg: Any) -> int:
    """Print a line for each check; returns 1 where something is broken, else 0."""
    states, hint = [], "" if cfg else "; --config=FILE also checks a run's data, and if it fits"
    for name, check in _checks(cfg, given.workdir):
        print(f"{name:12} ", end="", flush=True)  # before: a check may hang, or end the process
        state, text, fix = attempt(check, debug=given.debug)
        print(f"{state:8} {text}{f'; {fix}' if fix else ''}", flush=True)
        states.append(state)
        if (name, state) == ("imports", BROKEN):
            hint = "; the other checks need what is missing"
            break
    print(", ".join(f"{states.count(s)} {s}" for s in (OK, WARNING, BROKEN)) + hint)
    return 1 if BROKEN in states else 0


def _checks(cfg: Any, workdir: Path) -> Iterator[tuple[str, Callable[[], Finding]]]:
    yield "packages", check_machine.packages
    yield "imports", check_machine.imports
    from vit_jax.process import startup

    startup.configure()
    yield "devices", check_machine.devices
    yield "step", check_machine.step
    yield "disk", lambda: check_machine.disk(workdir)
    if cfg is not None:
        from vit_jax.cli.reports import check_run

        yield "size", lambda: check_run.size(cfg, workdir)
        yield "dataset", lambda: check_run.dataset(cfg)


def attempt(check: Callable[[], Finding], *, debug: bool = False) -> Finding:
    """Run a check; whatever it raises is what is broken."""
    try:
        return check()
    except (Exception, SystemExit) as error:
        if debug:
            traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return Finding(BROKEN, kind + " ".join(str(error).split())[:500])


main = options.verb(Doctor, doctor, _read)
