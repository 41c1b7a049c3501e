# SPDX-License-Identifier: Apache-2.0
"""Images a CPU-second of training: squares, native shapes padded, native sizes packed.

    python -m benchmarks.naflex [--steps 8]

Drawn photographs' sizes: sides of 64 to 384 pixels, of any shape. All three train one network, at
rows of 256 patches of 16 pixels, in turns in one process, on batches that are made before; packed
rows hold as many images as a batch has. CPU time is counted, which other programs on the machine
do not take, as they do the wall's.
"""

import argparse
import dataclasses
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from PIL import Image

from benchmarks import record
from vit_jax import data, models
from vit_jax.config.tree import Config
from vit_jax.data import GRIDS, Crop, DataConfig, TransformConfig
from vit_jax.devices import sharding
from vit_jax.train import build as build_lib

RESULT = record.RESULTS / "naflex.json"
LENGTH, SIDE, BATCH, ROWS = 256, 256, 32, 15
FORMS = ("squares", "padded", "packed")
_MEANING = {
    "squares": "squashed to 256 x 256",
    "padded": "enlarged or reduced to at most 256 patches, a row each",
    "packed": "their own size or smaller, several to a row",
}


def write(root: Path, count: int) -> None:
    """Write images whose sides are drawn log-uniformly from 64 to 384 pixels."""
    rng = np.random.default_rng(0)
    for i in range(count):
        height, width = np.exp(rng.uniform(math.log(64), math.log(384), 2)).astype(int).tolist()
        place = root / "train" / f"class{i % 2}"
        place.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(place / f"{i}.jpg")


def config(form: str, folder: Path) -> Config:
    """Return the run of a form: a ViT of 12 blocks at a width of 192."""
    native = form != "squares"
    crop = Crop.NATIVE if native else Crop.RESIZE
    transform = TransformConfig(crop=crop, lengths=(LENGTH,) if native else ())
    pack = ROWS if form == "packed" else 0
    sizes = {"dim": 192, "depth": 12, "num_heads": 3, "mlp_dim": 768, "num_classes": 2}
    model = models.variant("naflexvit_b16_gap", **sizes, image_size=(SIDE, SIDE))
    name = f"folder:{folder}"
    reading = DataConfig(name=name, batch_size=BATCH, transform=transform, pack=pack)
    return Config(model=model, data=reading, duration="1000 steps")


@dataclasses.dataclass
class Form:
    """A form's compiled step, its state and its batches."""

    step: Any
    state: Any
    batches: list[dict[str, jax.Array]]
    fill: float
    patches: float
    seconds: list[float] = dataclasses.field(default_factory=list)

    def take(self, index: int) -> float:
        """Take a step; returns its CPU seconds."""
        start = time.process_time()
        batch = self.batches[index % len(self.batches)]
        self.state, metrics = self.step(self.state, {}, batch)
        jax.block_until_ready(metrics)
        return time.process_time() - start


def prepared(form: str, folder: Path, mesh: jax.sharding.Mesh) -> Form:
    """Make two batches of a form and compile its step."""
    cfg = config(form, folder)
    source = data.open_source(cfg.data.name, split="train")
    parts = build_lib.build(cfg, len(source))
    objective, found = parts.objective, []
    with data.train_batches(source, cfg.data, views=objective.views, seed=0) as stream:
        for _ in range(2):
            batch = next(stream)
            found.append({k: batch[k] for k in ("image", GRIDS, "label") if k in batch})
    grids = [batch[GRIDS] for batch in found if GRIDS in batch]
    used = sum(int(each.prod(axis=-1).sum()) for each in grids) or 2 * BATCH * LENGTH
    rows = 2 * (cfg.data.pack or BATCH)
    batches = [sharding.global_batch(b, mesh, batch_size=rows // 2) for b in found]
    (step,) = build_lib.compile_steps(parts, mesh)
    state = build_lib.init_state(cfg, parts, mesh)
    ready = Form(step, state, batches, used / (rows * LENGTH), used / (2 * BATCH))
    ready.take(0)  # compiles
    return ready


def measured(steps: int) -> list[dict[str, Any]]:
    """Take steps of all forms in turns; returns a row for each."""
    mesh = sharding.make_mesh(sharding.MeshConfig(), jax.devices()[:1])
    with tempfile.TemporaryDirectory() as folder, jax.set_mesh(mesh):
        write(Path(folder), 4 * BATCH)
        forms = {form: prepared(form, Path(folder), mesh) for form in FORMS}
        for index in range(steps):
            for form in forms.values():
                form.seconds.append(form.take(index))
    return [
        {
            "form": name,
            "images_per_cpu_second": BATCH / float(np.median(form.seconds)),
            "range": [BATCH / max(form.seconds), BATCH / min(form.seconds)],
            "fill": form.fill,
            "patches_per_image": form.patches,
        }
        for name, form in forms.items()
    ]


def table(result: Path = RESULT) -> str:
    """Return the table of docs/naflex.md."""
    content = json.loads(result.read_text())
    lines = ["| images | patches an image | of the rows filled | images a CPU-second |"]
    lines += ["|---|--:|--:|--:|"]
    for row in content["rows"]:
        low, high = row["range"]
        lines.append(
            f"| {row['form']}: {_MEANING[row['form']]} | {row['patches_per_image']:.0f} | "
            f"{row['fill']:.1%} | {row['images_per_cpu_second']:.1f} ({low:.1f}-{high:.1f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args()
    rows = measured(args.steps)
    content = {"device": record.device(), "steps": args.steps, "rows": rows}
    args.out.write_text(json.dumps(content, indent=1) + "\n")
    print(table(args.out))  # `python -m benchmarks.tables` puts it on the page


if __name__ == "__main__":
    main()
