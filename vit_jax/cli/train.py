# SPDX-License-Identifier: Apache-2.0
"""`python main.py`: flags to Config to fit, to a dry run or to programs for other hardware."""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from vit_jax.cli import flags as cli_flags
from vit_jax.cli import output
from vit_jax.errors import UserError

_HELP = """usage: python main.py --config=FILE --workdir=DIR [--config.FIELD=VALUE ...] [flags]

Trains the run that FILE describes, or continues it where DIR holds its checkpoints.

  --dry_run              build all by shapes, print sizes and costs, write nothing
  --compile_for=NAME     compile it for hardware that is not here (v5e:16x16, 2xv5e:8x8, h100:8x8),
                         print memory, traffic and time, write nothing
  --allow_config_change  continue a run though its config changed
  --allow_data_change    continue a run though its data changed
  --profile=STEP,COUNT   write a trace of COUNT steps from STEP on to DIR/profile
  --debug                show the traceback of an error

  python main.py --config=configs/vit_mu_digits.py --workdir=runs/digits
  python main.py --config=configs/vit_b16_imagenet.py --dry_run --config.model.depth=6
  python main.py --config=configs/vit_b16_imagenet.py --compile_for=h100:8 --config.accum_steps=8

Exit status: 0 finished, 2 bad input, 65 bad data, 66 no usable checkpoint, 70 not finite, 71 hung,
74 cannot save or read, 75 stopped by a signal (after 71 and 75 the same command continues)."""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    values = cli_flags.define(argv)
    flags.DEFINE_string("workdir", "", "Where the run is kept.", flag_values=values)
    flags.DEFINE_bool(
        "dry_run",
        False,
        "Build all by shapes, print sizes and costs, write nothing.",
        flag_values=values,
    )
    flags.DEFINE_string(
        "compile_for", None, "Compile for hardware such as v5e:16x16, h100:8.", flag_values=values
    )
    flags.DEFINE_bool(
        "allow_config_change",
        False,
        "Continue a run though its config changed.",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "allow_data_change", False, "Continue a run though its data changed.", flag_values=values
    )
    flags.DEFINE_string(
        "profile", None, "STEP,COUNT: trace so many steps from that one on.", flag_values=values
    )

    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        cfg = cli_flags.read_config(argv, values)
        # Late: a mistake in the config is reported before the slower half of the imports.
        from vit_jax import startup

        hardware = values["compile_for"].value
        if hardware is not None:
            if values["dry_run"].value:
                raise UserError("--dry_run and --compile_for are two reports; ask for one of them")
            startup.stay_on_cpu()
        startup.configure()
        from vit_jax.train import profile, workdir

        if values["workdir"].value:
            workdir.check(Path(values["workdir"].value).expanduser().absolute())

        asked = values["profile"].value
        window = None if asked is None else profile.read_window(asked)
        if values["dry_run"].value:
            from vit_jax.cli.dry_run import dry_run

            report, missing = dry_run(cfg)
            print(report)
            if missing is not None:
                raise missing
            return 0
        if hardware is not None:
            from vit_jax.cli.compile_for import compile_for

            report, unfit = compile_for(cfg, hardware)
            print(report)
            if unfit is not None:
                raise unfit
            return 0
        if not values["workdir"].value:
            raise UserError("where to? add --workdir=DIR (or --dry_run to write nothing)")
        if values["workdir"].value.startswith("-"):
            raise UserError(f"--workdir={values['workdir'].value} looks like a flag; name a folder")
        import jax

        from vit_jax import cluster
        from vit_jax.checkpoints.checkpointer import SaveFailed
        from vit_jax.train.loop import fit
        from vit_jax.train.lost_process import LostProcess, leave, other_processes

        cluster.join()
        try:
            with other_processes(), output.outlive_readers():
                return fit(
                    cfg,
                    values["workdir"].value,
                    allow_config_change=bool(values["allow_config_change"].value),
                    allow_data_change=bool(values["allow_data_change"].value),
                    window=window,
                ).status
        except (LostProcess, SaveFailed) as error:
            if jax.process_count() == 1:
                raise
            with contextlib.suppress(OSError):  # a terminal that is gone
                cli_flags.tell(str(error), argv)
            leave(error.status)

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
