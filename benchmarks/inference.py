# SPDX-License-Identifier: Apache-2.0
"""Images per second of inference by batch size, in turns with timm; and what merging tokens gains.

    python -m benchmarks.inference
    python -m benchmarks.inference --variant vit_s16 --batch 64 256 --dtype bfloat16
    python -m benchmarks.inference --variant vit_s16 --batch 32 --token_merging 8 13

Weights are random; other families are in benchmarks.train_step. The peer runs if `torch` and `timm`
are installed (see there).
"""

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import forward_ours, forward_timm, record, step_timm, turns
from benchmarks.train_step import COMPILED, EAGER, make_row, model_config
from vit_jax.models import DType


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One model at several batch sizes, beside timm's or, merging tokens, beside itself."""

    variant: str
    batch_sizes: tuple[int, ...] = (8,)
    dtype: str = "float32"
    token_merging: tuple[int, ...] = ()


DEFAULT = (
    Case(variant="vit_ti16", batch_sizes=(1, 8, 32, 128)),
    Case(variant="vit_ti16", batch_sizes=(1, 8, 32), dtype="bfloat16"),
    Case(variant="vit_s16", batch_sizes=(1, 8, 32)),
    Case(variant="vit_s16", batch_sizes=(1, 8, 32), dtype="bfloat16"),
    Case(variant="resnet50", batch_sizes=(1, 8, 32)),
    Case(variant="vit_s16", token_merging=(8, 13)),
)


def measure(case: Case, rounds: int, seconds: float, peer: str) -> list[record.Row]:
    """Measure one case; returns a row a batch size, or a row a number of merged tokens and size."""
    settings = {"batch_sizes": case.batch_sizes, "seconds": seconds}
    model = model_config(case.variant, case.dtype)
    rows: list[record.Row] = []
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(turns.Side(forward_ours.make, model=model, **settings))
        if case.token_merging:
            for merged in case.token_merging:
                changed = dataclasses.replace(model, token_merging=merged)
                side = turns.Side(forward_ours.make, model=changed, **settings)
                sides, name = [stack.enter_context(side), plain], f" token_merging={merged}"
                rows += _compare(case, name, sides, rounds, "without merging", "")
            return rows
        peers: dict[str, dict[str, turns.Side]] = {}
        try:
            for one, tried in (_tried(case, plain) if peer == "timm" else {}).items():
                peers[one] = {
                    key: stack.enter_context(
                        turns.Side(forward_timm.make, model=model, **settings, **options)
                    )
                    for key, options in tried.items()
                }
        except turns.Missing as error:
            print(f"{error}; for the peer: pip install torch torchvision timm")
        sides = [plain, *(side for tried in peers.values() for side in tried.values())]
        counts = {side.facts["num_params"] for side in sides}
        if len(counts) > 1:
            raise RuntimeError(f"not the same model: {counts} parameters")
        for size in case.batch_sizes:
            load = os.getloadavg()[0]
            done = dict(zip(sides, turns.alternate(sides, rounds, size), strict=True))
            work = f"{case.variant} forward batch={size} {case.dtype}"
            found = [
                make_row(
                    work,
                    "forward",
                    plain.facts,
                    [done[plain], *(done[side] for side in tried.values())],
                    "; ".join(tried),
                    load,
                    one,
                )
                for one, tried in peers.items()
            ] or [make_row(work, "forward", plain.facts, [done[plain]], "", load)]
            print(record.table(found), flush=True)
            rows += found
        return rows


def _tried(case: Case, ours: turns.Side) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings of timm, eager and compiled, of which the fastest counts."""
    on_cpu = ours.facts["platform"] == "cpu"
    tried = step_timm.settings() if on_cpu else {"default": {}}
    if case.variant in step_timm.CONVOLUTIONAL:
        tried |= {f"{key}, NHWC": {**o, "channels_last": True} for key, o in tried.items()}
    if case.dtype == "bfloat16":
        tried |= {f"{key}, autocast": {**o, "autocast": True} for key, o in tried.items()}
    name = {"name": step_timm.NAMES.get(case.variant, "")}
    tried = {key: {**options, **name} for key, options in tried.items()}
    last = [key for key in tried if "autocast" not in key][-1]  # compiling takes a minute
    return {EAGER: tried, COMPILED: {last: {**tried[last], "compiled": True}}}


def _compare(
    case: Case, name: str, sides: Sequence[turns.Side], rounds: int, peer: str, tried: str
) -> list[record.Row]:
    """Let sides, the first of which the rows are about, take turns at every batch size."""
    rows = []
    for size in case.batch_sizes:
        load = os.getloadavg()[0]
        done = turns.alternate(sides, rounds, size)
        work = f"{case.variant}{name} forward batch={size} {case.dtype}"
        rows.append(make_row(work, "forward", sides[0].facts, done, tried, load, peer))
        print(record.table(rows[-1:]), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inference")
    parser.add_argument("--variant", help="one model instead of the table's")
    parser.add_argument("--batch", type=int, nargs="+", default=[8], help="with --variant")
    parser.add_argument("--dtype", choices=[d.value for d in DType], default="float32")
    parser.add_argument("--token_merging", type=int, nargs="+", default=[], metavar="R")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.5, help="at least about so long a turn")
    parser.add_argument("--peer", choices=("timm", "none"), default="timm")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    cases = DEFAULT
    if args.variant:
        one = Case(
            variant=args.variant,
            batch_sizes=tuple(args.batch),
            dtype=args.dtype,
            token_merging=tuple(args.token_merging),
        )
        cases = (one,)
    elif args.token_merging or args.batch != [8] or args.dtype != "float32":
        parser.error("--batch, --dtype and --token_merging are of one model: add --variant")
    rows = [row for case in cases for row in measure(case, args.rounds, args.seconds, args.peer)]
    peers = {row.peer for row in rows}
    versions = turns.installed("torch", "timm") if EAGER in peers else {}
    record.report(rows, args.out, versions)


if __name__ == "__main__":
    main()
