# SPDX-License-Identifier: Apache-2.0
"""Where measurements are kept: `results/<device>.json`, one row per piece of work and peer."""

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
_CPU_INFO = Path("/proc/cpuinfo")

_PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "grain",
    "numpy",
    "simplejpeg",
    "opencv-python-headless",
)
_DEVICE = "import jax; d = jax.devices(); print(d[0].platform, len(d), d[0].device_kind, sep='|')"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One measured piece of work.

    Attributes:
        work: what was done, with every size that matters.
        unit: of `ours` and `peer_value`: "images/s", where more is better, or "s", where less is.
        ours: this project's value.
        peer: what was measured beside it in the same run; None if nothing was.
        peer_value: the peer's value.
        ratio: ours / peer_value; of several rounds, the median of the rounds' own ratios.
        ratio_range: the smallest and largest of the rounds' ratios.
        cpu_ratio: the peer's CPU seconds per image over ours, which other programs on the machine
            disturb less than `ratio`; more is better. None where the work is not the CPU's.
        mfu: model FLOPs per second over the devices' peak; None where that is not known.
        peer_settings: what the peer was tried with, and its images/s; the fastest of each round
            counted.
        load: the machine's load average before; above 0.5 per core a ratio is only a hint.
    """

    work: str
    unit: str
    ours: float
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    ratio_range: tuple[float, float] | None = None
    cpu_ratio: float | None = None
    mfu: float | None = None
    peer_settings: str | None = None
    load: float | None = None


def num_cores() -> int:
    """Return the number of cores this process may use.

    Not by `hardware.num_cores`: that imports jax, whose time and memory a peer would carry.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def device() -> str:
    """Name the device that jax uses: "AMD EPYC 7B13, 2 cores" or "NVIDIA H200 x 8".

    Asked in another process: a GPU's memory stays free for those that measure.
    """
    out = subprocess.run(
        [sys.executable, "-c", _DEVICE], capture_output=True, text=True, check=True
    )
    kind, count, name = out.stdout.strip().splitlines()[-1].split("|")
    if kind == "cpu":
        cores = num_cores()
        return f"{_processor()}, {cores} core{'s' * (cores > 1)}"
    return name if count == "1" else f"{name} x {count}"


def _processor() -> str:
    """Name the CPU as Linux does, without trademarks and clock; "cpu" where it does not say."""
    listed = _CPU_INFO.read_text() if _CPU_INFO.exists() else ""
    found = re.search(r"^model name\s*:(.*)$", listed, re.MULTILINE)
    name = re.sub(r"\((R|TM)\)|\b(CPU|Processor)\b|@.*", "", found[1]) if found else ""
    return " ".join(name.split()) or "cpu"


def head(root: Path = RESULTS.parents[1]) -> str | None:
    """Name what is measured: the last commit of `vit_jax/`, "+" behind it where files differ.

    Commits of documents and of benchmarks alone leave it as it is, so that rows of two machines
    can say that they are of one program. None outside of a checkout.
    """

    def git(*args: str) -> str:
        command = ["git", "-C", str(root), *args, "--", "vit_jax"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("log", "-1", "--format=%h", "--abbrev=10")
        return (commit + "+" * bool(git("status", "--porcelain"))) or None
    except (OSError, subprocess.CalledProcessError):
        return None


def file_of(directory: Path, name: str) -> Path:
    """Return the JSON file of a device: "AMD EPYC 7B13, 2 cores" -> amd-epyc-7b13-2-cores.json."""
    return directory / f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def save(
    rows: Sequence[Row],
    directory: Path,
    device_name: str,
    versions: Mapping[str, str] | None = None,
) -> Path:
    """Put rows into the device's file, over those of the same work and peer; returns its path.

    Args:
        rows: what was measured now.
        directory: holds one JSON file per device.
        device_name: from `device`.
        versions: of the peers; this project's own dependencies are added.
    """
    path = file_of(directory, device_name)
    old: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    today = datetime.date.today().isoformat()
    measured = {"date": today, "head": head()}
    new = {(row.work, row.peer): {**_rounded(row), **measured} for row in rows}
    # A row without a peer says nothing that one with a peer does not.
    replaced = new.keys() | {(row.work, None) for row in rows}
    kept = [r for r in old.get("rows", []) if (r["work"], r["peer"]) not in replaced]
    installed = {name: importlib.metadata.version(name) for name in _PACKAGES}
    content = {
        "device": device_name,
        "versions": {
            **old.get("versions", {}),
            "python": platform.python_version(),
            **installed,
            **(versions or {}),
        },
        "date": today,
        "rows": sorted([*kept, *new.values()], key=lambda r: (r["work"], r["peer"] or "")),
    }
    directory.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
    return path


def table(rows: Sequence[Row]) -> str:
    """Lay rows out for a terminal."""
    head = ["work", "unit", "ours", "peer's", "ratio", "rounds", "CPU", "MFU", "load", "peer"]
    lines = [head] + [
        [
            row.work,
            row.unit,
            _number(row.ours),
            _number(row.peer_value),
            _number(row.ratio),
            "-".join(_number(r) for r in row.ratio_range) if row.ratio_range else "",
            _number(row.cpu_ratio),
            f"{row.mfu:.1%}" if row.mfu else "",
            _number(row.load),
            row.peer or "",
        ]
        for row in rows
    ]
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def report(
    rows: Sequence[Row],
    directory: Path,
    versions: Mapping[str, str] | None = None,
) -> None:
    """Print the table and save the rows."""
    name = device()
    print(table(rows))
    print(f"{name}: written to {save(rows, directory, name, versions)}")


def _rounded(row: Row) -> dict[str, Any]:
    def short(value: Any) -> Any:
        if isinstance(value, tuple):
            return [short(v) for v in value]
        return float(f"{value:.4g}") if isinstance(value, float) else value

    return {name: short(value) for name, value in dataclasses.asdict(row).items()}


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
