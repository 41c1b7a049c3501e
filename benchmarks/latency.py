# SPDX-License-Identifier: Apache-2.0
"""Exported models at batch 1 beside timm and ONNX Runtime, in turns.

It needs torch, timm and the extra [onnx].

    python -m benchmarks.latency
    python -m benchmarks.latency --variant vit_b16

A turn takes pixels from the host and brings logits back to it, image by image.
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks import latency_sides, record, step_timm, turns
from benchmarks.train_step import EAGER, make_row, model_config

COMPILED = "timm torch.compile"
RUNTIME = "ONNX Runtime of timm's export"


def measure(variant: str, rounds: int, seconds: float) -> list[record.Row]:
    """Measure our two exports beside each peer; returns a row a pair."""
    common = {"model": model_config(variant, "float32"), "seconds": seconds}
    with contextlib.ExitStack() as stack:

        def side(make: turns.Make, **settings: object) -> turns.Side:
            return stack.enter_context(turns.Side(make, **common, **settings))

        ours = {"StableHLO": side(latency_sides.stablehlo), "ONNX": side(latency_sides.onnx)}
        tried = step_timm.settings()
        peers = {
            EAGER: [side(latency_sides.timm, **options) for options in tried.values()],
            COMPILED: [side(latency_sides.timm, **o, compiled=True) for o in tried.values()],
            RUNTIME: [side(latency_sides.timm_onnx)],
        }
        sides = [*ours.values(), *(each for some in peers.values() for each in some)]
        load = os.getloadavg()[0]
        done = dict(zip(sides, turns.alternate(sides, rounds, None), strict=True))
    facts = {"peak_flops": None, "platform": "cpu"}
    return [
        make_row(
            f"{variant} exported to {form}, batch=1 float32",
            "forward",
            facts,
            [done[one], *(done[each] for each in theirs)],
            "" if peer == RUNTIME else "; ".join(tried),
            load,
            peer,
        )
        for form, one in ours.items()
        for peer, theirs in peers.items()
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency")
    parser.add_argument("--variant", nargs="+", default=["vit_ti16", "vit_s16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="at least about so long a turn")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    rows = [row for name in args.variant for row in measure(name, args.rounds, args.seconds)]
    record.report(rows, args.out, turns.installed("torch", "timm", "onnxruntime"))


if __name__ == "__main__":
    main()
