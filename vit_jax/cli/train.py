# SPDX-License-Identifier: Apache-2.0
"""`vit_jax train` and main.py: read flags and a config; train, or print one of two reports."""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

from vit_jax.cli.parsing import flags, options
from vit_jax.cli.parsing.options import ConfigOptions, flag
from vit_jax.errors import UserError
from vit_jax.process import output


@dataclasses.dataclass(kw_only=True)
class Train(ConfigOptions):
    """Trains the run that a config describes, or continues it where DIR holds its checkpoints.

    `python main.py` in a clone does the same.

      vit_jax train --config=vit_mu_digits --workdir=runs/digits
      vit_jax train --config=deit_s16_imagenet --dry_run --config.model=deit_ti16
      vit_jax train --config=my_config.py:its_argument --workdir=runs/mine --config.seed=1
      vit_jax train --config=vit_b16_imagenet --compile_for=h100:8 --config.accum_steps=8

    Exit status: 0 finished, 2 bad input, 65 bad data, 66 no usable checkpoint, 70 not finite,
    71 hung, 74 cannot save or read, 75 stopped by a signal (after 71 and 75 the same command
    continues).
    """

    usage = "vit_jax train --config=NAME --workdir=DIR [--config.FIELD=VALUE ...] [flags]"
    workdir: Path | None = flag(None, "where the run is kept: a path, gs:// or s3://", "DIR")
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
    from vit_jax.process import startup

    if given.compile_for is not None:
        startup.stay_on_cpu()
    startup.configure()
    from vit_jax.train.report import profile
    from vit_jax.workdir import folder as workdir

    if given.workdir:
        workdir.resolve(given.workdir)
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
        with other_processes(), output.outlive_readers():
            return fit(
                cfg,
                given.workdir,
                allow_config_change=given.allow_config_change,
                allow_data_change=given.allow_data_change,
                window=window,
            ).status
    except (LostProcess, SaveFailed) as error:
        if jax.process_count() == 1:
            raise
        # A normal exit would wait for the lost process, and then abort.
        with contextlib.suppress(OSError):  # a terminal that is gone
            flags.print_error(str(error), debug=given.debug)
        leave(error.status)


def _report(given: Train, cfg: Any) -> int:
    """Print the report of --dry_run or of --compile_for."""
    if given.compile_for is None:
        from vit_jax.cli.reports.dry_run import dry_run
        from vit_jax.cli.summary import show

        report, error = dry_run(cfg)
        report = "\n".join(["CONFIG", *show(cfg, everything=given.all_fields), "", report])
    else:
        from vit_jax.cli.reports.compile_for import compile_for

        report, error = compile_for(cfg, given.compile_for)
    print(report)
    if error is not None:  # after the report, which shows by how much the run does not fit
        raise error
    return 0


# From the command line to the exit status: `read_config` checks the config before `train` runs.
main = options.verb(Train, train, options.read_config)
