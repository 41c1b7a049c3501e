# SPDX-License-Identifier: Apache-2.0
"""Every family compiled for hardware that is not here, by the vendors' own compilers.

    python -m benchmarks.compile
    python -m benchmarks.compile --only "vit_h14 v5e:16x16" --again
    python -m benchmarks.compile --minutes 60
    python -m benchmarks.compile --estimates

The whole training step of each model, in bfloat16 and its blocks in a loop, for a pod of 256 v5e,
128 v5p and 64 H100. Each row is compiled in a process of its own with a limit of time, and written
at once: what is there is skipped, so that an interrupted matrix goes on where it stopped. Other
versions of a compiler start it anew. docs/scale.md's table is made of it by `benchmarks.scale`.
"""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import record
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.data import DataConfig
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType, Remat

RESULTS = record.RESULTS / "compile.json"
# By the name that `--compile_for` takes: the number of devices.
HARDWARE = {"v5e:16x16": 256, "v5p:4x4x8": 128, "h100:8x8": 64}
_PACKAGES = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "nvidia-cuda-nvcc")


@dataclasses.dataclass(frozen=True)
class Model:
    """How a model is trained in the matrix.

    Attributes:
        images: on a chip.
        fsdp: devices that share its parameters; `data` takes the others.
        remat: what the blocks keep.
    """

    images: int = 64
    fsdp: int = 1
    remat: Remat = Remat.NONE


_HUGE = Model(images=16, fsdp=8, remat=Remat.FULL)
MODELS = {
    "vit_h14": _HUGE,
    "vit_g14": _HUGE,
    "vit_G14": _HUGE,
    "vit_b16": Model(),
    "deit_s16_distilled": Model(),
    "deit3_b16": Model(),
    "cait_xxs24": Model(),
    "convit_s": Model(),
    "mixer_b16": Model(),
    "r26_vit_s32": Model(),
    "swin_t": Model(),
    "convnext_t": Model(),
    "hiera_t": Model(),
    "bit_r50x1": Model(),
    "resnet50": Model(),
    "regnety_4gf": Model(),
}
ROWS = tuple(f"{model} {hardware}" for hardware in HARDWARE for model in MODELS)


def config(name: str, hardware: str) -> Config:
    """Return the run of a row: its model on all the chips of its hardware."""
    model, count = MODELS[name], HARDWARE[hardware]
    return Config(
        model=models.variant(name, dtype=DType.BFLOAT16, scan_unroll=1, remat=model.remat),
        data=DataConfig(batch_size=model.images * count),
        mesh=MeshConfig(data=count // model.fsdp, fsdp=model.fsdp),
        duration="100 steps",
    )


def compile_row(name: str, hardware: str) -> dict[str, Any]:
    """Compile one row here and now, and measure what the compiler made of it."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    from benchmarks.memory import lowered
    from vit_jax.cost import hlo, memory, scale, topology

    cfg = config(name, hardware)
    found = topology.describe(hardware)
    with found.tracing():
        began = time.perf_counter()
        _, mesh, traced = lowered(cfg, found.devices)
        traced_at = time.perf_counter()
        compiled = traced.compile(compiler_options=found.compiler_options or None)
        done = time.perf_counter()
    program, sizes = hlo.parse(compiled.as_text()), dict(mesh.shape)
    row: dict[str, Any] = {
        "trace_s": round(traced_at - began, 1),
        "compile_s": round(done - traced_at, 1),
        "plan": memory.planned(compiled),
        "collectives": summed(hlo.find(program, sizes)),
    }
    cycles, clock = hlo.estimated_cycles(program), scale.clock(found.target.kind)
    if cycles is not None and clock is not None:  # of TPUs: for two forms of a model, not a speed
        row["static_ms"] = round(1e3 * cycles / clock, 2)
    return row | estimates(name, hardware, row["plan"])


def estimates(name: str, hardware: str, plan: int) -> dict[str, Any]:
    """Return what the dry run says of a row, which takes no compiler's time, beside its plan."""
    from vit_jax.cost import scale, topology
    from vit_jax.devices import sharding
    from vit_jax.train import build as build_lib
    from vit_jax.train.estimate import estimate_memory, estimate_step, estimate_traffic

    cfg, found = config(name, hardware), topology.describe(hardware)
    with found.tracing():
        parts = build_lib.build(cfg, num_examples=10 * cfg.data.batch_size)
        mesh = sharding.make_mesh(cfg.mesh, found.devices)
        estimated, sizes = estimate_memory(cfg, parts, mesh).device_total, dict(mesh.shape)
        chip = scale.chip(found.target.kind)
        step = None if chip is None else estimate_step(cfg, parts, sizes, chip).range
        moved = estimate_traffic(cfg, parts, sizes)
    return {
        "estimate": estimated,
        "ratio": round(estimated / plan, 3),
        "predicted_bytes": {k: int(v) for k, v in dataclasses.asdict(moved).items() if v},
        "step_ms": None if step is None else [round(1e3 * seconds, 2) for seconds in step],
    }


def summed(found: Sequence[Any]) -> list[dict[str, Any]]:
    """Sum the bytes and the number of a program's collectives by kind, axes and whether hidden."""
    groups: dict[tuple[str, str, bool], list[int]] = {}
    for x in found:
        if x.axes:
            total = groups.setdefault((x.kind, x.axes, x.hidden), [0, 0])
            total[0] += x.num_bytes * x.times
            total[1] += x.times
    return [
        {"kind": kind, "axes": axes, "hidden": hidden, "bytes": nbytes, "count": count}
        for (kind, axes, hidden), (nbytes, count) in sorted(groups.items())
    ]


def _in_process(row: str, seconds: float) -> dict[str, Any]:
    """Compile a row in a process of its own; what failed says why, in one line."""
    command = [sys.executable, "-m", "benchmarks.compile", "--child", row]
    env = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        command,
        env=env,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # the compilers start processes too
    ) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            return {"compiled": False, "reason": f"no program within {seconds:g} s"}
        except KeyboardInterrupt:
            os.killpg(child.pid, signal.SIGKILL)
            raise
    if child.returncode == 0:
        return {"compiled": True, **json.loads(out.splitlines()[-1])}
    lines = [line for line in err.splitlines() if line.strip()]
    if child.returncode < 0:
        return {"compiled": False, "reason": f"the compiler died of signal {-child.returncode}"}
    return {"compiled": False, "reason": lines[-1][:300] if lines else "no message"}


def _child(row: str) -> None:
    name, hardware = row.split()
    try:
        print(json.dumps(compile_row(name, hardware)))
    except Exception as error:  # the compilers raise what they like, a trace of C++ behind it
        reason = (str(error).strip().splitlines() or [""])[0]
        sys.exit(f"{type(error).__name__}: {reason}")


def described(row: str) -> dict[str, Any]:
    """Return what a row is: model, hardware, mesh, images a chip."""
    name, hardware = row.split()
    mesh = config(name, hardware).mesh
    return {
        "model": name,
        "hardware": hardware,
        "mesh": [mesh.data, mesh.fsdp, mesh.tensor],
        "images": MODELS[name].images,
        "remat": MODELS[name].remat.value,
    }


def read(path: Path = RESULTS) -> dict[str, Any]:
    """Return the file's content: versions, and rows by name."""
    if not path.exists():
        return {"versions": {}, "rows": {}}
    return json.loads(path.read_text())


def versions() -> dict[str, str]:
    """Return the versions of the compilers that are installed."""
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compile")
    parser.add_argument("--only", action="append", choices=ROWS, metavar="ROW")
    parser.add_argument("--again", action="store_true", help="rows that are there as well")
    parser.add_argument("--minutes", type=float, default=15.0, help="limit of a row")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--child", choices=ROWS, help=argparse.SUPPRESS)
    parser.add_argument(
        "--estimates", action="store_true", help="of the rows that are there, and compile nothing"
    )
    args = parser.parse_args(argv)
    if args.child:
        _child(args.child)
        return
    if args.estimates:
        _estimate_again(args.out)
        return
    content, installed = read(args.out), versions()
    if content["versions"] != installed:
        content = {"versions": installed, "rows": {}}
    for row in args.only or ROWS:
        if row in content["rows"] and not args.again:
            continue
        result = _in_process(row, 60 * args.minutes)
        content["rows"][row] = {**described(row), **result}
        content["rows"] = {name: content["rows"][name] for name in ROWS if name in content["rows"]}
        args.out.write_text(json.dumps(content, indent=1) + "\n")
        print(_line(row, content["rows"][row]), flush=True)


def _estimate_again(path: Path) -> None:
    import jax

    jax.config.update("jax_platforms", "cpu")
    content = read(path)
    for row, result in content["rows"].items():
        if result["compiled"]:
            name, hardware = row.split()
            result |= estimates(name, hardware, result["plan"])
            jax.clear_caches()  # which do not know what hardware a trace is for
        print(_line(row, result), flush=True)
    path.write_text(json.dumps(content, indent=1) + "\n")


def _line(row: str, result: dict[str, Any]) -> str:
    if not result["compiled"]:
        return f"{row}: does not compile: {result['reason']}"
    return (
        f"{row}: {result['compile_s']:.0f} s, plan {result['plan'] / 1e9:.2f} GB, "
        f"estimate {result['ratio']:.2f} of it"
    )


if __name__ == "__main__":
    main()
