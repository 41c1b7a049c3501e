# SPDX-License-Identifier: Apache-2.0
"""Images per second of a training step and of a forward pass, in turns with timm on PyTorch.

    python -m benchmarks.train_step
    python -m benchmarks.train_step --variant vit_b16 --batch 256 --dtype bfloat16

The peer runs if `torch` and `timm` are installed, best in a virtual environment of its own:
`pip install -r requirements.txt torch torchvision timm`.
"""

import argparse
import contextlib
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record, step_ours, step_timm, turns
from vit_jax import models
from vit_jax.models import DType, ModelConfig
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool

_DIGITS = "vit_mu_8x8"  # 8x8 pixels, patch 2, learned positions: what timm can build too
_DEFAULT = (_DIGITS, "vit_ti16", "vit_s16")
_PEER = "timm eager"


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


def measure(
    variant: str, batch: int, dtype: str, rounds: int, steps: int, seconds: float, peer: str
) -> list[record.Row]:
    """Measure one model; returns the rows of its training step and of its forward pass."""
    settings = {
        "model": model_config(variant, dtype),
        "batch_size": batch,
        "steps": steps,
        "seconds": seconds,
    }
    rows = []
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(turns.Side(step_ours.make, **settings))
        sides, tried = [ours], {}
        if peer == "timm":
            tried = step_timm.settings() if ours.facts["platform"] == "cpu" else {"default": {}}
            try:
                for options in tried.values():
                    name = step_timm.NAMES.get(variant, "")
                    side = turns.Side(step_timm.make, **settings, **options, name=name)
                    sides.append(stack.enter_context(side))
            except turns.Missing as error:
                print(f"{error}; for the peer: pip install torch torchvision timm")
            counts = {side.facts["num_params"] for side in sides}
            if len(counts) > 1:
                raise RuntimeError(f"not the same model: {counts} parameters")
        for work in ("train", "forward"):
            load = os.getloadavg()[0]
            done = turns.alternate(sides, rounds, work)
            for name, turn in zip(("ours", *tried), done, strict=False):
                print(f"  {name}: " + ", ".join(f"{t.images / t.seconds:,.3g}" for t in turn))
            name = f"{variant} {work} batch={batch} {dtype}"
            rows.append(make_row(name, work, ours.facts, done, "; ".join(tried), load))
            print(record.table(rows[-1:]), flush=True)
    return rows


def make_row(
    name: str,
    work: str,
    facts: dict[str, Any],
    done: Sequence[Sequence[turns.Turn]],
    tried: str,
    load: float,
    peer: str = _PEER,
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


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_step")
    parser.add_argument("--variant", action="append", help=f"default: {', '.join(_DEFAULT)}")
    parser.add_argument("--batch", type=int, help=f"default: 256 for {_DIGITS}, 16 for others")
    parser.add_argument("--dtype", choices=[d.value for d in DType], default="float32")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3, help="at least so many in a round")
    parser.add_argument("--seconds", type=float, default=2.0, help="at least about so long a round")
    parser.add_argument("--peer", choices=("timm", "none"), default="timm")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    rows: list[record.Row] = []
    for variant in args.variant or _DEFAULT:
        batch = args.batch or (256 if variant == _DIGITS else 16)
        rows += measure(
            variant, batch, args.dtype, args.rounds, args.steps, args.seconds, args.peer
        )
    versions = turns.installed("torch", "timm") if any(row.peer for row in rows) else {}
    record.report(rows, args.out, versions)


if __name__ == "__main__":
    main()
