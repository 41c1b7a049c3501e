# SPDX-License-Identifier: Apache-2.0
"""Images per second of a training step and of a forward pass, in turns with their peers.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --variant vit_b16 --batch 256 --dtype bfloat16

Peers are timm on PyTorch, eager and by `torch.compile`, if `torch` and `timm` are installed, best
in a virtual environment of their own (`pip install -r requirements.txt torch torchvision timm`),
and, of plain ViTs, what plain Flax gives.
"""

import argparse
import contextlib
import dataclasses
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record, step_flax, step_ours, step_timm, turns
from vit_jax import models
from vit_jax.models import DType, ModelConfig, ViTConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool

_DIGITS = "vit_mu_8x8"  # 8x8 pixels, patch 2, learned positions: what timm can build too
EAGER, COMPILED, PLAIN = "timm eager", "timm torch.compile", "plain Flax"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """One model at one batch size, beside some of its peers."""

    variant: str
    batch_size: int
    peers: tuple[str, ...] = (EAGER, COMPILED)
    dtype: str = "float32"


# The ViTs beside everything; one small network of every other family beside timm.
DEFAULT = (
    Case(variant="vit_s16", batch_size=16, peers=(EAGER, COMPILED, PLAIN)),
    Case(variant="vit_ti16", batch_size=16, peers=(EAGER, COMPILED, PLAIN)),
    Case(variant=_DIGITS, batch_size=256, peers=(EAGER, COMPILED, PLAIN)),
    *(Case(variant=name, batch_size=8) for name in step_timm.NAMES),
)


def model_config(variant: str, dtype: str) -> ModelConfig:
    """Return a variant with PyTorch's exact GELU, so that both sides compute the same function."""
    options: dict[str, Any] = {"dtype": DType(dtype)}
    if hasattr(models.VARIANTS.get(variant, models.ViTConfig()), "gelu"):
        options["gelu"] = Gelu.ERF
    if variant != _DIGITS:
        return models.variant(variant, **options)
    return models.variant(
        "vit_mu8",
        num_classes=10,
        image_size=(8, 8),
        channels=1,
        patch=(2, 2),
        dim=64,
        depth=4,
        num_heads=4,
        mlp_dim=256,
        class_token=False,
        pool=Pool.GAP,
        **options,
    )


def peer_settings(peer: str, variant: str, platform: str) -> dict[str, dict[str, Any]]:
    """Return what a peer is tried with, by name: the fastest of every round counts."""
    name = step_timm.NAMES.get(variant, "")
    if peer == PLAIN:
        return {"": {}}
    convolutional = variant in step_timm.CONVOLUTIONAL
    if platform != "cpu":
        return {"": {"name": name, "compiled": peer == COMPILED, "channels_last": convolutional}}
    tried = step_timm.settings()
    if convolutional:  # mostly its fastest layout on a CPU too
        tried |= {
            f"{key}, NHWC": options | {"channels_last": True} for key, options in tried.items()
        }
    if peer == COMPILED:  # compiling takes a minute; threads that sleep lose least where busy
        chosen = [key for key, each in tried.items() if each["wait_policy"] == "passive"]
        threads = max(tried[key]["threads"] for key in chosen)
        last = [key for key in chosen if tried[key]["threads"] == threads][-1]
        tried = {last: tried[last] | {"compiled": True}}
    return {key: options | {"name": name} for key, options in tried.items()}


def measure(case: Case, rounds: int, steps: int, seconds: float) -> list[record.Row]:
    """Measure one model; returns rows of its training step and forward pass, one for each peer."""
    settings = {
        "model": model_config(case.variant, case.dtype),
        "batch_size": case.batch_size,
        "steps": steps,
        "seconds": seconds,
    }
    rows: list[record.Row] = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(turns.Side(step_ours.make, **settings))
        sides: dict[str, dict[str, turns.Side]] = {}
        for peer in case.peers:
            make = step_flax.make if peer == PLAIN else step_timm.make
            try:
                sides[peer] = {
                    key: stack.enter_context(turns.Side(make, **settings, **options))
                    for key, options in peer_settings(
                        peer, case.variant, ours.facts["platform"]
                    ).items()
                }
            except turns.Missing as error:
                print(f"{error}; for {peer}: pip install torch torchvision timm")
        all_sides = [ours, *(side for tried in sides.values() for side in tried.values())]
        counts = {side.facts["num_params"] for side in all_sides}
        if len(counts) > 1:
            raise RuntimeError(f"not the same model: {counts} parameters")
        for work in ("train", "forward"):
            load = os.getloadavg()[0]
            mine, *theirs = turns.alternate(all_sides, rounds, work)
            name = f"{case.variant} {work} batch={case.batch_size} {case.dtype}"
            found = []
            for peer, tried in sides.items():
                done, theirs = theirs[: len(tried)], theirs[len(tried) :]
                for key, turn in zip(tried, done, strict=True):
                    rates = ", ".join(f"{t.images / t.seconds:,.3g}" for t in turn)
                    print(f"  {peer} {key}: {rates}")
                tried_with = "; ".join(
                    f"{key}: {turns.images_per_second(turn):.3g}"
                    for key, turn in zip(tried, done, strict=True)
                    if key
                )
                found.append(
                    make_row(name, work, ours.facts, [mine, *done], tried_with, load, peer)
                )
            found = found or [make_row(name, work, ours.facts, [mine], "", load)]
            print(record.table(found), flush=True)
            rows += found
    return rows


def make_row(
    name: str,
    work: str,
    facts: dict[str, Any],
    done: Sequence[Sequence[turns.Turn]],
    tried: str,
    load: float,
    peer: str = EAGER,
) -> record.Row:
    """Return the row of our turns, which come first, and those of a peer's settings."""
    ours, *peers = done
    rate = turns.images_per_second(ours)
    peak = facts["peak_flops"]
    mfu = rate * facts["flops"][work] / peak if peak else None
    if not peers:
        return record.Row(work=name, unit="images/s", ours=rate, mfu=mfu, load=load)
    best = turns.fastest(peers)
    ratios = turns.ratios(ours, best)
    return record.Row(
        work=name,
        unit="images/s",
        ours=rate,
        peer=peer,
        peer_value=turns.images_per_second(best),
        ratio=statistics.median(ratios),
        ratio_range=(min(ratios), max(ratios)),
        cpu_ratio=turns.cpu_ratio(ours, best) if facts["platform"] == "cpu" else None,
        mfu=mfu,
        peer_settings=tried or None,
        load=load,
    )


def chosen(args: argparse.Namespace) -> Sequence[Case]:
    """Return the cases of the command line: the table's, or one model's beside all its peers."""
    cases = [case for case in DEFAULT if args.variant in (None, case.variant)]
    if args.variant and (not cases or args.batch or args.dtype != cases[0].dtype):
        plain = type(model_config(args.variant, args.dtype)) is ViTConfig
        cases = [
            Case(
                variant=args.variant,
                batch_size=args.batch or (cases[0].batch_size if cases else 16),
                peers=(EAGER, COMPILED, PLAIN) if plain else (EAGER, COMPILED),
                dtype=args.dtype,
            )
        ]
    if args.peers is None:
        return cases
    return [dataclasses.replace(case, peers=tuple(args.peers)) for case in cases]


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_step")
    parser.add_argument("--variant", help="one model instead of the table's")
    parser.add_argument("--batch", type=int, help="with --variant")
    parser.add_argument("--dtype", choices=[d.value for d in DType], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="at least so many in a round")
    parser.add_argument("--seconds", type=float, default=2.0, help="at least about so long a round")
    parser.add_argument("--peers", nargs="*", choices=(EAGER, COMPILED, PLAIN), metavar="PEER")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    if not args.variant and (args.batch or args.dtype != "float32"):
        parser.error("--batch and --dtype are of one model: add --variant")
    for case in chosen(args):
        rows = measure(case, args.rounds, args.steps, args.seconds)
        peers = {row.peer for row in rows}
        versions = turns.installed("torch", "timm") if peers & {EAGER, COMPILED} else {}
        record.report(rows, args.out, versions)  # as soon as there is something to lose


if __name__ == "__main__":
    main()
