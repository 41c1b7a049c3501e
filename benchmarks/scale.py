# SPDX-License-Identifier: Apache-2.0
"""The predictions of docs/scale.md: step time, memory and communication on 8 to 1024 chips.

    python -m benchmarks.scale

Nothing is measured and no device is used: shapes, data sheets and `vit_jax/analysis/scale.py`.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from vit_jax import models, sharding
from vit_jax.analysis import scale
from vit_jax.cli.dry_run import estimate_memory, estimate_step, estimate_traffic
from vit_jax.config import Config
from vit_jax.data import DataConfig
from vit_jax.models import DType, Remat
from vit_jax.sharding import MeshConfig
from vit_jax.train import build as build_lib

PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
MARKS = ("<!-- scale-table -->", "<!-- /scale-table -->")
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
        model=models.variant(plan.name, dtype=DType.BFLOAT16, remat=plan.remat, scan_unroll=1),
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
        moved = estimate_traffic(here, parts, sizes)
        nbytes = moved.gather + moved.scatter + 2 * (moved.reduce + moved.reduce_copies)
        layout = f"{sizes['data']} x {sizes['fsdp']}"
        images = f"{BATCH // count // pieces}" + (f" x {pieces}" if pieces > 1 else "")
        row = [plan.name, f"{count}", layout, images, f"{nbytes / 1e9:.1f}"]
        for chip in scale.CHIPS.values():
            held = _memory(here, count, chip)
            least, most = estimate_step(here, parts, sizes, chip).range
            times = f"{least * 1e3:.0f}-{most * 1e3:.0f}"
            row.append(f"{times}; {held / 1e9:.1f}" if held < chip.memory else "memory")
        cells.append(row)
    return cells


def _memory(cfg: Config, count: int) -> int:
    mesh = sharding.abstract_mesh(cfg.mesh, count)
    return estimate_memory(cfg, build_lib.build(cfg, _IMAGES), mesh).device_total


def table(plans: Sequence[Plan] = PLANS) -> str:
    """Return the Markdown table."""
    head = ["model", "chips", "data x fsdp", "images a chip", "GB a chip", "GB moved"]
    head += [f"{name}, ms" for name in scale.CHIPS]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    lines += [row for plan in plans for row in rows(plan)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    """Write the table into the page."""
    before, rest = PAGE.read_text().split(MARKS[0])
    after = rest.split(MARKS[1])[1]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table()}\n\n{MARKS[1]}{after}")


if __name__ == "__main__":
    main()
