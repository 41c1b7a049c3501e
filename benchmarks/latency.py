# SPDX-License-Identifier: Apache-2.0
"""Exported models beside timm and ONNX Runtime, float32 and int8, in turns.

It needs torch, timm, onnxscript and the extra [onnx].

    taskset --cpu-list 0 python -m benchmarks.latency
    taskset --cpu-list 0 python -m benchmarks.latency --variant vit_b16 --batch 1

A turn takes pixels from the host and brings logits back to it, so many images at a time.
"""

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import latency_sides, record, step_timm, turns
from benchmarks.train_step import EAGER, make_row, model_config

COMPILED = "timm torch.compile"
RUNTIME = "ONNX Runtime of timm's export"
QUANTISED = "PyTorch's quantize_dynamic of timm"


def sides_of(variant: str, dtype: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return how our exports are made, by name, and those of each peer by its settings."""
    name = {"name": step_timm.NAMES.get(variant, "")}
    torch = {
        key: (latency_sides.timm, {**options, **name})
        for key, options in step_timm.settings().items()
    }
    if dtype == "int8":
        int8 = {"int8": True}
        return {"ONNX": (latency_sides.onnx, int8)}, {
            RUNTIME: {"traced": (latency_sides.timm_onnx, {**name, **int8})},
            QUANTISED: {key: (make, {**options, **int8}) for key, (make, options) in torch.items()},
        }
    if variant in step_timm.CONVOLUTIONAL:
        torch |= {
            f"{key}, NHWC": (make, options | {"channels_last": True})
            for key, (make, options) in torch.items()
        }
    last = [*torch][-1]  # compiling takes a minute
    make, options = torch[last]
    return {"StableHLO": (latency_sides.stablehlo, {}), "ONNX": (latency_sides.onnx, {})}, {
        EAGER: torch,
        COMPILED: {last: (make, options | {"compiled": True})},
        RUNTIME: {
            how: (latency_sides.timm_onnx, {**name, "dynamo": how == "torch.export"})
            for how in ("traced", "torch.export")
        },
    }


def measure(
    variant: str, dtype: str, sizes: Sequence[int], rounds: int, seconds: float
) -> list[record.Row]:
    """Measure our exports beside each peer; returns a row a batch size, export and peer."""
    model = model_config(variant, "float32")
    common = {"model": model, "batch_sizes": tuple(sizes), "seconds": seconds}
    forms, peers = sides_of(variant, dtype)
    facts, rows = {"peak_flops": None, "platform": "cpu"}, []
    with contextlib.ExitStack() as stack:

        def side(made: tuple[turns.Make, dict[str, Any]]) -> turns.Side:
            make, options = made
            return stack.enter_context(turns.Side(make, **common, **options))

        ours = {form: side(made) for form, made in forms.items()}
        theirs = {peer: [*map(side, tried.values())] for peer, tried in peers.items()}
        sides = [*ours.values(), *(each for some in theirs.values() for each in some)]
        for size in sizes:
            load = os.getloadavg()[0]
            done = dict(zip(sides, turns.alternate(sides, rounds, size), strict=True))
            for form, one in ours.items():
                work = f"{variant} exported to {form}, batch={size} {dtype}"
                for peer, some in theirs.items():
                    turn = [done[one], *(done[each] for each in some)]
                    tried = "; ".join(peers[peer])
                    rows.append(make_row(work, "forward", facts, turn, tried, load, peer))
            print(record.table(rows[-len(ours) * len(theirs) :]), flush=True)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.latency")
    parser.add_argument("--variant", nargs="+", default=["vit_ti16", "vit_s16", "resnet50"])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--dtype", nargs="+", choices=("float32", "int8"), default=["float32"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="at least about so long a turn")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    rows = [
        row
        for name in args.variant
        for dtype in args.dtype
        for row in measure(name, dtype, args.batch, args.rounds, args.seconds)
    ]
    record.report(rows, args.out, turns.installed("torch", "timm", "onnxruntime"))


if __name__ == "__main__":
    main()
