# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/scale.md: what compilers planned, and predictions for 8 to 1024 chips.

    python -m benchmarks.scale

Nothing is measured and no device is used: results/compile.json, which `benchmarks.compile` wrote;
shapes, data sheets and `vit_jax/cost/scale.py`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import compile as matrix
from vit_jax import models
from vit_jax.config.tree import Config
from vit_jax.cost import scale
from vit_jax.data import DataConfig
from vit_jax.devices import hardware, sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models import DType, Remat
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.process import startup
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import estimate_memory, estimate_step, estimate_traffic

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
MARKS = ("<!-- scale-table -->", "<!-- /scale-table -->")
COMPILED_MARKS = ("<!-- compiled-table -->", "<!-- /compiled-table -->")
CHIPS = (8, 64, 256, 1024)
BATCH = 4096
_IMAGES = 1_281_167  # ImageNet-1k: any number does


@dataclasses.dataclass(frozen=True)
class Plan:
    """How a model is trained here.

    Attributes:
        name: the variant.
        most: images that a chip takes at once; more are accumulated.
        fsdp: devices that share its parameters.
        remat: what the blocks keep.
    """

    name: str
    most: int
    fsdp: int
    remat: Remat


PLANS = (
    Plan("vit_b16", 64, 1, Remat.NONE),
    Plan("vit_l16", 32, 8, Remat.NONE),
    Plan("vit_h14", 32, 8, Remat.FULL),
    Plan("vit_g14", 16, 8, Remat.FULL),
    Plan("vit_G14", 16, 8, Remat.FULL),
)


def rows(plan: Plan, counts: Sequence[int] = CHIPS) -> list[list[str]]:
    """Predict one model on each number of chips; the cells of the table's rows."""
    cfg = Config(
        # XLA's form of attention, which every chip has: the largest memory of all.
        model=models.variant(
            plan.name,
            dtype=DType.BFLOAT16,
            remat=plan.remat,
            scan_unroll=1,
            attention=AttentionImpl.XLA,
        ),
        data=DataConfig(batch_size=BATCH),
        mesh=MeshConfig(fsdp=plan.fsdp),
        duration="100 steps",
    )
    parts = build_lib.build(cfg, _IMAGES)
    cells = []
    for count in counts:
        sizes = {"data": count // plan.fsdp, "fsdp": plan.fsdp, "tensor": 1}
        pieces = max(BATCH // count // plan.most, 1)
        here = dataclasses.replace(cfg, accum_steps=pieces)
        with hardware.tracing_for(hardware.Target("tpu")):
            mesh = sharding.abstract_mesh(cfg.mesh, count)
            held = estimate_memory(here, parts, mesh).device_total
        moved = estimate_traffic(here, parts, sizes)
        nbytes = moved.gather + moved.scatter + 2 * (moved.reduce + moved.reduce_copies)
        layout = f"{sizes['data']} x {sizes['fsdp']}"
        images = f"{BATCH // count // pieces}" + (f" x {pieces}" if pieces > 1 else "")
        row = [plan.name, f"{count}", layout, images, f"{held / 1e9:.1f}", f"{nbytes / 1e9:.1f}"]
        for chip in scale.CHIPS.values():
            step = estimate_step(here, parts, sizes, chip)
            least, most = (f"{seconds * 1e3:.0f}" for seconds in step.range)
            moving = f"{(step.hidden + step.exposed) * 1e3:.0f}"
            times = f"{least}-{most} / {moving}"
            row.append(times if held < chip.memory else "memory")
        cells.append(row)
    return cells


def table(plans: Sequence[Plan] = PLANS) -> str:
    """Return the Markdown table of predictions."""
    head = ["model", "chips", "data x fsdp", "images a chip", "GB a chip", "GB moved"]
    head += [f"{name}, ms" for name in scale.CHIPS]
    return _markdown(head, [row for plan in plans for row in rows(plan)])


def compiled_rows(content: Mapping[str, Any]) -> list[list[str]]:
    """Return the cells of the matrix of compiles, from what `benchmarks.compile` wrote."""
    cells = []
    for row in content["rows"].values():
        what = [row["model"], row["hardware"], " x ".join(map(str, row["mesh"][:2]))]
        what.append(f"{row['images']}" + (", remat" if row["remat"] != "none" else ""))
        if not row["compiled"]:
            cells.append([*what, f"does not compile: {row['reason']}", *[""] * 6])
            continue
        gb = sum(x["bytes"] for x in row["collectives"]) / 1e9
        hidden = sum(x["bytes"] for x in row["collectives"] if x["hidden"]) / 1e9
        step, static = row["step_ms"], row.get("static_ms")
        cells.append(
            [
                *what,
                f"{row['plan'] / 1e9:.2f}",
                f"{row['ratio']:.2f}",
                f"{row['compile_s']:.0f}",
                f"{gb:.2f}",
                f"{hidden / gb:.0%}" if gb else "",
                "" if step is None else f"{step[0]:.0f}-{step[1]:.0f}",
                "" if static is None else f"{static:.0f}",
            ]
        )
    return cells


def compiled_table(content: Mapping[str, Any]) -> str:
    """Return the Markdown table of the matrix, and by which compilers."""
    head = ["model", "hardware", "data x fsdp", "images a chip", "plan, GB a chip", "est/plan"]
    head += ["compile, s", "GB moved", "hidden", "step, ms", "static, ms"]
    by = ", ".join(f"{name} {version}" for name, version in content["versions"].items())
    return (
        f"{_markdown(head, compiled_rows(content))}\n\n{len(content['rows'])} rows, by {by or '-'}."
    )


def _markdown(head: list[str], cells: list[list[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *cells]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def between(page: str, marks: tuple[str, str]) -> str:
    """Return what a page has between two marks."""
    return page.split(marks[0])[1].split(marks[1])[0].strip()


def _replaced(page: str, marks: tuple[str, str], text: str) -> str:
    before, rest = page.split(marks[0])
    return f"{before}{marks[0]}\n\n{text}\n\n{marks[1]}{rest.split(marks[1])[1]}"


def main() -> None:
    """Write the tables into the page."""
    startup.configure()
    page = _replaced(PAGE.read_text(), MARKS, table())
    PAGE.write_text(_replaced(page, COMPILED_MARKS, compiled_table(matrix.read())))


if __name__ == "__main__":
    main()
