# SPDX-License-Identifier: Apache-2.0
"""Which operations hold back the rows that are slower than timm: docs/benchmarks.md's list.

A row's limit is what single operations reach, XLA's beside PyTorch's, measured on the same device
by `benchmarks.cpu_operations`; the compiler decides there, not the model's code. PyTorch's GFLOP/s
are the roof: what the processor is known to do on the same arrays.
"""

import json
import re
from pathlib import Path
from typing import Any

from benchmarks import cpu_operations, record

_WORK = re.compile(r"\w+ (train|forward|exported to \w+,) batch=\d+ \w+")
_ONNX = "ONNX Runtime of timm's export"
# The operations that take most of a model's time, by their names' form, and upstream's issue.
_DECIDING = (
    ("regnety", r"3x3 .* groups", "https://github.com/jax-ml/jax/issues/23713"),
    ("resnet|bit|r26", r"3x3 on 56", ""),
    ("convnext", r"7x7|dense ", "https://github.com/jax-ml/jax/issues/23713"),
    ("", r"dense ", ""),
)
_SHOWN = 3

Row = dict[str, Any]


def slower(rows: list[Row]) -> list[Row]:
    """Return the rows of models that are slower than timm, each beside its fastest form."""
    found: dict[str, Row] = {}
    for row in rows:
        is_peer = (row["peer"] or "").startswith("timm") and row["ratio"] is not None
        if is_peer and _WORK.fullmatch(row["work"]):
            found[row["work"]] = min(row, found.get(row["work"], row), key=lambda r: r["ratio"])
    return [row for row in found.values() if row["ratio"] < 0.995]


def limit(work: str, rows: list[Row]) -> str:
    """Return the slowest of the operations that decide a row, and upstream's issue.

    Each has its ratio, and the GFLOP/s of XLA and of PyTorch. What ONNX Runtime computes, it
    decides: beside it stands timm's own export there.
    """
    if " ONNX, " in work:
        there = [row for row in rows if row["work"] == work and row["peer"] == _ONNX]
        return "".join(f"{row['ratio']:.2f} of {_ONNX}" for row in there)
    is_step, model, dtype = " train " in work, work.split()[0], work.split()[-1]
    _, form, issue = next(each for each in _DECIDING if re.match(each[0], model))
    chosen = sorted(
        (
            row
            for row in rows
            if re.match(form, row["work"])
            and row["work"].endswith(f" {dtype}")
            and row["peer"] == "PyTorch"
            and (is_step or "gradient" not in row["work"])
        ),
        key=lambda row: row["ratio"],
    )
    texts = []
    for row in chosen[:_SHOWN]:
        name = row["work"].removesuffix(f" {dtype}")
        gflops = cpu_operations.flops(cpu_operations.CASES[name]) / 1e9
        ours, peer = (row[key] * gflops for key in ("ours", "peer_value"))
        texts.append(f"{name}: {row['ratio']:.2f} ({ours:.0f} of {peer:.0f} GFLOP/s)")
    number = "#".join(issue.split("/")[-3::2])
    return "; ".join(texts + ([f"[{number}]({issue})"] if issue and texts else []))


def table(results: Path = record.RESULTS) -> str:
    """Lay out the slower rows of every device with measured operations, each with its limit."""
    lines = ["| row | device | ratio | by CPU seconds | limit |", "|---|---|--:|--:|---|"]
    for path in sorted(results.glob("*-core*.json")):
        content = json.loads(path.read_text())
        for row in slower(content["rows"]):
            text = limit(row["work"], content["rows"])
            cpu = "" if row["cpu_ratio"] is None else f"{row['cpu_ratio']:.2f}"
            cells = [row["work"], content["device"], f"{row['ratio']:.2f}", cpu, text]
            if text:
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
