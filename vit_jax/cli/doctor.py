# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax doctor`: does this machine train as it should? A line for each check."""

import functools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from vit_jax.cli import check_install
from vit_jax.cli.finding import BROKEN, OK, WARNING, Finding
from vit_jax.errors import UserError

Check = tuple[str, Callable[[], Finding]]

_HELP = """usage: python -m vit_jax doctor [--config=FILE ...overrides] [--workdir=DIR]

Checks the install, the devices, a training step, the disk and memory; with --config also whether
that run fits them and its data can be read. Prints a line for each: ok, warning or broken, and what
to do. Leaves nothing behind but compiled programs.

  --workdir=DIR   where runs are to be kept (default: the current folder)
  --debug         show the traceback of a check that failed

  python -m vit_jax doctor
  python -m vit_jax doctor --config=configs/vit_mu_digits.py --workdir=runs/digits

Exit status: 0 nothing is broken, 1 something is, 2 bad usage."""

_INSTALL: tuple[Check, ...] = (
    ("python", check_install.python),
    ("packages", check_install.packages),
    ("imports", check_install.imports),
)


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0
    debug = "--debug" in argv
    try:
        install = [(name, attempt(check, debug=debug)) for name, check in _INSTALL]
        if install[-1][1].state == BROKEN:
            return _conclude(_told(install), "; the other checks need what is missing")
        from vit_jax.cli import flags as cli_flags  # late: absl may be what is missing

        return cli_flags.run(lambda: _examine(argv, install, debug=debug), argv)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130  # as the shell has it for SIGINT
    except BrokenPipeError:  # a reader such as `head` has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 141  # as the shell has it for SIGPIPE


def _examine(argv: Sequence[str], install: Sequence[tuple[str, Finding]], *, debug: bool) -> int:
    cfg, place = _read(argv)
    findings = _told(install)
    from vit_jax import startup

    startup.configure()
    for name, check in _checks(cfg, place):
        print(f"{name:12} ", end="", flush=True)  # before: a check may hang, or end the process
        findings.append(attempt(check, debug=debug))
        _tell(findings[-1])
    hint = "" if cfg else "; --config=FILE also checks a run's data, and whether it fits"
    return _conclude(findings, hint)


def _read(argv: Sequence[str]) -> tuple[Any, Path]:
    """Return the Config, None where none is given, and the place of runs."""
    from absl import flags

    from vit_jax.cli import flags as cli_flags

    values = cli_flags.define(argv)
    flags.DEFINE_string("workdir", ".", "Where runs are kept.", flag_values=values)
    cfg = None
    if cli_flags.value_of("config", argv) is None:
        cli_flags.parse(argv, values)
    else:
        cfg = cli_flags.read_config(argv, values)
    return cfg, Path(str(values["workdir"].value))


def _checks(cfg: Any, place: Path) -> Iterable[Check]:
    from vit_jax.cli import check_compute, check_disk

    yield "accelerator", check_install.accelerator
    yield "devices", check_compute.devices
    yield "float32", functools.partial(check_compute.matmul, "float32")
    yield "bfloat16", functools.partial(check_compute.matmul, "bfloat16")
    yield "step", check_compute.training_step
    yield "cache", check_disk.cache
    yield "disk", functools.partial(check_disk.disk, place)
    yield "memory", check_compute.memory
    if cfg is not None:
        from vit_jax.cli import check_run

        yield "size", functools.partial(check_run.size, cfg, place)
        yield "dataset", functools.partial(check_run.dataset, cfg)


def attempt(check: Callable[[], Finding], *, debug: bool = False) -> Finding:
    """Do a check; whatever it raises is what is broken."""
    try:
        return check()
    except (Exception, SystemExit) as error:
        if debug:
            traceback.print_exc()
        kind = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        return Finding(BROKEN, kind + " ".join(str(error).split())[:500])


def _told(install: Iterable[tuple[str, Finding]]) -> list[Finding]:
    findings = []
    for name, finding in install:
        print(f"{name:12} ", end="")
        _tell(finding)
        findings.append(finding)
    return findings


def _tell(finding: Finding) -> None:
    fix = f"; {finding.fix}" if finding.fix else ""
    print(f"{finding.state:8} {finding.text}{fix}", flush=True)


def _conclude(findings: Sequence[Finding], hint: str) -> int:
    """Print the last line; returns the exit status."""
    counts: dict[str, Any] = dict.fromkeys((OK, WARNING, BROKEN), 0)
    for finding in findings:
        counts[finding.state] += 1
    print(", ".join(f"{count} {state}" for state, count in counts.items()) + hint)
    return 1 if counts[BROKEN] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
