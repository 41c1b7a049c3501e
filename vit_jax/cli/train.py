# SPDX-License-Identifier: Apache-2.0
"""`python main.py`: flags to Config to fit, to a dry run or to programs for other hardware."""

import contextlib
import dataclasses
import errno
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from vit_jax.cli import flags, options
from vit_jax.cli.options import ConfigOptions, flag
from vit_jax.errors import UserError

# The pipe or terminal is closed, or the disk of the log is full: the run goes on without its log.
_DROPPED = (errno.EPIPE, errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclasses.dataclass(kw_only=True)
class Train(ConfigOptions):
    """Trains the run that FILE describes, or continues it where DIR holds its checkpoints.

      python main.py --config=configs/vit_mu_digits.py --workdir=runs/digits
      python main.py --config=configs/vit_b16_imagenet.py --dry_run --config.model.depth=6
      python main.py --config=configs/vit_b16_imagenet.py --compile_for=h100:8 \\
          --config.accum_steps=8

    Exit status: 0 finished, 2 bad input, 65 bad data, 66 no usable checkpoint, 70 not finite,
    71 hung, 74 cannot save or read, 75 stopped by a signal (after 71 and 75 the same command
    continues).
    """

    usage = "python main.py --config=FILE --workdir=DIR [--config.FIELD=VALUE ...] [flags]"
    workdir: Path | None = flag(None, "where the run is kept", "DIR")
    dry_run: bool = flag(False, "print the config, sizes and costs by shapes, write nothing")
    all_fields: bool = flag(False, "with --dry_run: show the fields at their defaults, too")
    compile_for: str | None = flag(
        None,
        "compile it for hardware that is not here (v5e:16x16, 2xv5e:8x8, h100:8x8), print memory, "
        "traffic and time, write nothing",
    )
    allow_config_change: bool = flag(False, "continue a run though its config changed")
    allow_data_change: bool = flag(False, "continue a run though its data changed")
    profile: str | None = flag(None, "trace COUNT steps from STEP on to DIR/profile", "STEP,COUNT")


def train(given: Train, cfg: Any) -> int:
    """Train, or print one of the two reports; returns the exit status."""
    if given.compile_for is not None and given.dry_run:
        raise UserError("--dry_run and --compile_for are two reports; ask for one of them")
    # Late: a mistake in the config is reported before the slower half of the imports.
    from vit_jax import startup

    if given.compile_for is not None:
        startup.stay_on_cpu()
    startup.configure()
    from vit_jax.train import workdir
    from vit_jax.train.report import profile

    if given.workdir:
        workdir.check(given.workdir.absolute())
    window = None if given.profile is None else profile.read_window(given.profile)
    if given.dry_run or given.compile_for is not None:
        return _report(given, cfg)
    if not given.workdir:
        raise UserError("where to? add --workdir=DIR (or --dry_run to write nothing)")
    import jax

    from vit_jax.checkpoints.checkpointer import SaveFailed
    from vit_jax.train.health.lost_process import LostProcess, leave, other_processes
    from vit_jax.train.loop import fit

    startup.join_cluster()
    try:
        changes = {x: getattr(given, x) for x in ("allow_config_change", "allow_data_change")}
        with other_processes(), outlive_readers():
            return fit(cfg, given.workdir, window=window, **changes).status
    except (LostProcess, SaveFailed) as error:
        if jax.process_count() == 1:
            raise
        with contextlib.suppress(OSError):  # a terminal that is gone
            flags.print_error(str(error), debug=given.debug)
        leave(error.status)


def _report(given: Train, cfg: Any) -> int:
    """Print what a run would be, here or on other hardware."""
    if given.compile_for is None:
        from vit_jax.cli.dry_run import dry_run
        from vit_jax.cli.summary import show

        report, wrong = dry_run(cfg)
        report = "\n".join(["CONFIG", *show(cfg, everything=given.all_fields), "", report])
    else:
        from vit_jax.cli.compile_for import compile_for

        report, wrong = compile_for(cfg, given.compile_for)
    print(report)
    if wrong is not None:
        raise wrong
    return 0


class _Outliving(io.TextIOWrapper):
    """A stream that drops what it is given once its reader is gone or its file cannot grow."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._drop(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._drop(error)
            super().flush()

    def _drop(self, error: OSError) -> None:
        if error.errno not in _DROPPED:
            raise error
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


@contextlib.contextmanager
def outlive_readers() -> Iterator[None]:
    """Go on where whoever reads standard output or error stops: `| head`, a terminal that closes.

    Streams that are no files, such as a notebook's, are left as they are.
    """
    before = sys.stdout, sys.stderr
    inside = sys.stdout, sys.stderr = _outliving(sys.stdout), _outliving(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        for stream in inside:
            if isinstance(stream, _Outliving):
                stream.flush()
                stream.detach()  # what it wrapped stays open


def _outliving(stream: TextIO) -> TextIO:
    if type(stream) is not io.TextIOWrapper:  # None where the program began without it
        return stream
    with contextlib.suppress(OSError):
        stream.flush()
    same = {name: getattr(stream, name) for name in ("encoding", "errors", "line_buffering")}
    return _Outliving(stream.buffer, **same)


main = options.verb(Train, train, options.read_config)
