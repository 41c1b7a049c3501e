# SPDX-License-Identifier: Apache-2.0
"""Test top-1 of `finetune_folder:small` on drawn glyphs, from scratch and from drawn fractals.

    python -m benchmarks.own_images [--seeds 0 1 2]

The glyphs are 20 letters, 60 of each, in six fonts, turned, of many colours and sizes, as JPEG, PNG
and WebP. The backbone is `pretrain_fractals:small`'s. Only commands that a user types are run.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import glyphs, record
from benchmarks.digits import Row, markdown, save

EACH = 60  # images a class
_FORMATS = ("jpeg", "png", "webp")
_NOT_TRAINED = 0.2  # the shares of val and test


def run(*words: str) -> float:
    """Run a verb to its end and return its seconds."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "vit_jax", *words], check=True, stdout=sys.stderr)
    return time.perf_counter() - start


def draw(folder: Path) -> None:
    """Write the glyphs: folders of classes, of image files of three formats."""
    glyphs.write(folder, EACH, glyphs.draw_glyph, _FORMATS, np.random.default_rng(0))


def train(method: str, place: Path, seeds: list[int], *flags: str) -> Row:
    """Train on the glyphs in `place` once per seed and measure the best checkpoint on test."""
    top1, seconds = [], []
    for seed in seeds:
        workdir = place / f"{method}-{seed}"
        # The splits that the published numbers are of.
        name = f"--config.data.name=folder:{place / 'glyphs'}?rules=1"
        settings = (name, "--config.data.transform.flip=false")
        words = ("train", "--config=finetune_folder:small", *settings, *flags)
        seconds.append(run(*words, f"--config.seed={seed}", f"--workdir={workdir}"))
        out = workdir / "test"
        run("evaluate", f"--from={workdir}@best", "--split=test", f"--out={out}")
        top1.append(json.loads((out / "metrics.json").read_text())["top1"])
    num_train = round(len(glyphs.CLASSES) * EACH * (1 - _NOT_TRAINED))
    return Row(method=method, num_train=num_train, top1=tuple(top1), seconds=tuple(seconds))


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=record.RESULTS / "own_images.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        draw(place / "glyphs")
        backbone = place / "fractals"
        took = run("train", "--config=pretrain_fractals:small", f"--workdir={backbone}")
        print(f"pretrained on fractals in {took:.0f} s", file=sys.stderr)
        rows = [
            train("from scratch", place, args.seeds),
            train("from fractals", place, args.seeds, f"--config.init.weights=ckpt:{backbone}"),
        ]
    print(markdown(rows))
    save(rows, args.seeds, args.out)  # `python -m benchmarks.tables` puts it on the page


if __name__ == "__main__":
    main()
