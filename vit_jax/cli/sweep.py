# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax sweep plan|run|status|report`: many runs of one question."""

import sys
from collections.abc import Sequence
from pathlib import Path

from vit_jax.cli import arguments
from vit_jax.cli import flags as cli_flags


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    parser = arguments.Parser(
        prog="python -m vit_jax sweep",
        description="Plan, run, watch and report a sweep: a file in configs/sweeps.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="plan|run|status|report")
    plan = verbs.add_parser(
        "plan",
        help="print one JSON line for each run, and what all of them cost",
        description="Print one JSON line for each run of FILE, and on standard error what all of "
        "them cost. Makes no array and reads no image.",
    )
    plan.add_argument("file", type=Path, metavar="FILE")
    plan.add_argument("--out", type=Path, metavar="DIR", help="write them to DIR/manifest.jsonl")
    plan.add_argument(
        "--device",
        default="here",
        metavar="NAME",
        help="by which time is estimated: v4, v5e, v5p, v6e, H100, the FLOP/s that training "
        "reaches, such as 2e12, or here (default)",
    )
    plan.add_argument(
        "--num_devices", type=int, default=1, metavar="N", help="devices that share each run"
    )
    plan.add_argument("--price", type=float, metavar="X", help="of a device and hour, any currency")
    run = verbs.add_parser(
        "run",
        help="train every run that has not finished",
        description="Train every run of FILE, or of the manifest in DIR, that has not finished. "
        "Start it as often and on as many machines as you like, with one shared DIR. Exit status: "
        "0 all have finished, 1 some failed, 75 stopped by a signal (the same command continues).",
    )
    run.add_argument("target", type=Path, metavar="FILE|DIR")
    run.add_argument("--out", type=Path, metavar="DIR", help="where FILE's runs are kept")
    run.add_argument(
        "--workers", type=int, default=1, metavar="N", help="runs at a time on this machine"
    )
    run.add_argument(
        "--index", type=int, metavar="I", help="train line I of the manifest alone, counted from 0"
    )
    status = verbs.add_parser(
        "status",
        help="a table of what every run is doing",
        description="Show what every run is doing: on a terminal until all have ended.",
    )
    status.add_argument("place", type=Path, metavar="DIR")
    status.add_argument("--once", action="store_true", help="print the table and end")
    report = verbs.add_parser(
        "report",
        help="fit laws to the finished runs, and draw them",
        description="Fit scaling laws to the finished runs; write report.png, report.html and "
        "fits.json to DIR.",
    )
    report.add_argument("place", type=Path, metavar="DIR")
    report.add_argument("--title", default="", help="of the page; the directory's name")
    for verb in (plan, run, status, report):
        verb.add_argument("--debug", action="store_true", help="show the traceback of an error")

    def command() -> int:
        args, rest = parser.parse_known_args(list(argv[1:]))
        # Late: help is answered before jax is imported.
        from vit_jax.cli import sweep_file

        extra = sweep_file.extra_overrides(rest)
        if args.verb == "plan":
            from vit_jax.cli import sweep_plan

            return sweep_plan.plan(args, extra)
        if args.verb == "run":
            from vit_jax.cli import sweep_run

            return sweep_run.run(args, extra)
        if args.verb == "status":
            from vit_jax.cli import sweep_status

            return sweep_status.status(args.place, once=args.once)
        from vit_jax.cli import sweep_report

        return sweep_report.report(args.place, args.title)

    return cli_flags.run(command, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
