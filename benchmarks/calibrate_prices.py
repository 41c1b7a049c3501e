# SPDX-License-Identifier: Apache-2.0
"""Fit the constants of predicted step times to public measurements, and say how far they are off.

    python -m benchmarks.calibrate_prices

Reads results/public_throughput.tsv. Rows whose hash is even fit `cost/scale.py`'s constants, the
others test them. Writes results/calibrate_prices.json and prints the constants and the table;
nothing is measured and no device is used.
"""

import dataclasses
import functools
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import record
from vit_jax import models, trees
from vit_jax.cost import flops, scale
from vit_jax.models import DType
from vit_jax.process import startup

DATA = record.RESULTS / "public_throughput.tsv"
RESULTS = record.RESULTS / "calibrate_prices.json"
PAGE = Path(__file__).parent.parent / "docs" / "scale.md"
MARKS = ("<!-- prices-table -->", "<!-- /prices-table -->")
FIT, TEST = "fit", "test"

# The cores of v3: docs.cloud.google.com/tpu/docs/v3, 900 GB/s and two cores a chip; the page gives
# no link, so that of a ring is v4's times the ratio of the pods' all-reduce bandwidth a chip (340
# TB/s of 1,024 chips, 1.1 PB/s of 4,096), halved for a core. GeForce: 384 bits at 19.5 Gb/s.
_OTHERS = {
    "TPU v3": scale.Chip("TPU v3", 16e9, 2048, 62e9, 3e9, 450e9),
    "A100 40GB": dataclasses.replace(scale.CHIPS["A100"], memory=40e9, hbm=1555e9),
    "RTX 3090": scale.Chip("NVIDIA GeForce RTX 3090", 24e9, 1, 1e9, 1e9, 936e9, True),
}
CHIPS = {**scale.CHIPS, **_OTHERS}
# A step's work over that of a forward pass, by what is computed again: a gradient for each of the
# matmul's two operands comes to the pass itself, then a half of the pass or all of it runs twice.
_PASSES = {"none": 3.0, "some": 3.5, "full": 4.0}


class Measured(NamedTuple):
    """A row of the file.

    `use` is "train" for those that are fitted or tested; `how` is "compiled", by XLA, torch.compile
    or by hand, or "eager".
    """

    model: str
    resolution: int
    batch: int
    chip: str
    devices: int
    layout: str
    dtype: str
    how: str
    remat: str
    images_per_s: float
    use: str
    source: str
    note: str

    @property
    def part(self) -> str:
        """Whether the row fits the constants or tests them, by its hash."""
        what = f"{self.model} {self.resolution} {self.batch} {self.chip} {self.devices}"
        what += f" {self.dtype} {self.source}"
        return (FIT, TEST)[hashlib.sha256(what.encode()).digest()[0] % 2]


def measured(path: Path = DATA) -> list[Measured]:
    """Read the public measurements."""
    lines = [x for x in path.read_text().splitlines() if x and not x.startswith("#")]
    head, *rows = (line.split("\t") for line in lines)
    assert tuple(head) == Measured._fields, head
    return [_typed(row) for row in rows]


def _typed(cells: Sequence[str]) -> Measured:
    kinds = Measured.__annotations__.values()
    return Measured(*(kind(cell) for kind, cell in zip(kinds, cells, strict=True)))


class Counted(NamedTuple):
    """A forward pass of one image, and the model's parameters."""

    work: flops.Work
    params: int


def counted(row: Measured) -> Counted:
    """Count a row's model: the sum of its parts, each a variant or a stack of plain blocks."""
    itemsize = 4 if row.dtype == "float32" else 2
    return count(row.model, row.resolution, itemsize)


@functools.lru_cache
def count(model: str, resolution: int, itemsize: int) -> Counted:
    """Count a model of the file for images of one size."""
    work, params = flops.Work(), 0
    for part in model.split(" + "):
        stack = part.startswith("stack ")
        one = _stack(part, itemsize) if stack else _variant(part, resolution, itemsize)
        work, params = work.plus(one.work), params + one.params
    return Counted(work, params)


def _variant(name: str, side: int, itemsize: int) -> Counted:
    dtype = DType.FLOAT32 if itemsize == 4 else DType.BFLOAT16
    cfg = models.looped(models.variant(name, image_size=side, dtype=dtype))
    module, variables = models.create(cfg), models.abstract(cfg)
    image = jax.ShapeDtypeStruct((1, side, side, 3), jnp.float32)
    work = flops.work(lambda v, x: module.apply(v, x, train=False), variables, image)
    return Counted(work, trees.num_params(variables["params"]))


def _stack(spec: str, itemsize: int) -> Counted:
    """Count "stack WIDTHxDEPTH mlpM hHEADS tTOKENS", with vV a head of V outputs a token.

    "g" after M is a gated MLP, kvK are the heads of keys and values, dD a head's width. Attention
    is fused, as in the runs of these rows.
    """
    found = re.fullmatch(
        r"stack (\d+)x(\d+) mlp(\d+)(g?) h(\d+) t(\d+)(?: v(\d+))?(?: kv(\d+))?(?: d(\d+))?", spec
    )
    assert found, spec
    width, depth, mlp, heads, tokens = (int(found[i]) for i in (1, 2, 3, 5, 6))
    vocabulary, kv = int(found[7] or 0), int(found[8] or heads)
    head = int(found[9] or width // heads)
    kernels = [(width, (heads + 2 * kv) * head), (heads * head, width)]
    kernels += [(width, (1 + bool(found[4])) * mlp), (mlp, width)]
    block = flops.Work()
    for inner, columns in kernels:
        block = block.plus(flops.matmul(tokens, inner, columns, itemsize))
    for inner, columns in ((head, tokens), (tokens, head)):
        one = flops.matmul(tokens, inner, columns, itemsize, batch=heads)
        # Without the scores: queries and keys come, or values; the output goes.
        block = block.plus(one._replace(nbytes=2 * heads * tokens * head * itemsize))
    work = flops.Work().plus(block, depth)
    params = depth * sum(inner * columns for inner, columns in kernels)
    if vocabulary:
        work = work.plus(flops.matmul(tokens, width, vocabulary, itemsize))
        params += vocabulary * width
    return Counted(work, params)


class Terms(NamedTuple):
    """The seconds that make a row's step: of matmuls at the peak and of bytes at a traffic of 1.

    `rest` is the parameters' update; transfers run beside the step (`hidden`) or not (`exposed`).
    """

    matmuls: float
    memory: float
    rest: float
    hidden: float
    exposed: float
    floor: float

    def seconds(self, share: float, traffic: float) -> float:
        """Return the step's seconds."""
        step = max(self.matmuls / share + traffic * self.memory + self.rest, self.floor)
        return max(step, self.hidden) + self.exposed


def effort(row: Measured, found: Counted) -> scale.Effort:
    """Return what a row's step asks of a device."""
    return scale.effort(
        found.work,
        _PASSES[row.remat] * found.work.flops * row.batch,
        images=float(row.batch),
        weights=float(found.params),
        updated=found.params / (row.devices if row.layout == "fsdp" else 1),
        dtype="float32" if row.dtype == "float32" else "bfloat16",
    )


def transfers(row: Measured, found: Counted) -> tuple[float, float]:
    """Return the seconds of a row's transfers: beside the step, and not."""
    sizes = {"data": 1, "fsdp": 1, "tensor": 1, row.layout: row.devices}
    if row.layout == "fsdp":  # weights and gradients in bfloat16
        moved = scale.Traffic(4.0 * found.params, 2.0 * found.params, 0.0, 0.0, 0.0)
    else:
        moved = scale.Traffic(0.0, 0.0, 0.0, 4.0 * found.params, 0.0)
    return scale.transfers(moved, sizes, CHIPS[row.chip])


def terms(row: Measured, found: Counted) -> Terms:
    """Return the parts of a row's step, which the constants weigh."""
    chip, asked = CHIPS[row.chip], effort(row, found)
    floor = scale.floor_seconds(asked.work.calls, chip)
    rest = scale.UPDATE * asked.parameters / chip.hbm
    peak = scale.peak_flops(chip.kind, asked.dtype)
    assert peak is not None
    work = asked.work
    return Terms(work.flops / peak, work.nbytes / chip.hbm, rest, *transfers(row, found), floor)


class Constants(NamedTuple):
    """What is fitted: shares of the peak by chip, and bytes moved for each that is counted."""

    shares: dict[str, float]
    traffic: dict[str, float]

    def seconds(self, row: Measured, parts: Terms) -> float:
        """Predict the seconds of a row's step."""
        return parts.seconds(self.shares[_same(row.chip)], self.traffic[row.how])


def _same(chip: str) -> str:
    return "A100" if chip == "A100 40GB" else chip


def fitted(rows: Sequence[Measured], parts: Sequence[Terms]) -> Constants:
    """Fit the constants to rows: the least sum of the errors' absolute logarithms, smoothed.

    A weak pull to a share of .7 decides what rows of one kind leave open.
    """
    from scipy.optimize import minimize

    chips = sorted({_same(row.chip) for row in rows})
    kinds = sorted({row.how for row in rows})

    def unpacked(x: np.ndarray) -> Constants:
        shares = 1 / (1 + np.exp(-x[: len(chips)]))
        found = dict(zip(chips, shares.tolist(), strict=True))
        traffic = np.exp(x[len(chips) :]).tolist()
        return Constants(found, dict(zip(kinds, traffic, strict=True)))

    def loss(x: np.ndarray) -> float:
        guess, total = unpacked(x), 0.0
        for row, part in zip(rows, parts, strict=True):
            error = math.log(guess.seconds(row, part) * row.images_per_s / row.batch)
            total += math.sqrt(error * error + 0.01)
        pull = np.sum((x[: len(chips)] - math.log(0.7 / 0.3)) ** 2)
        return total + 0.05 * float(pull)

    x = np.array([math.log(0.7 / 0.3)] * len(chips) + [1.0] * len(kinds))
    for _ in range(3):
        x = minimize(loss, x, method="Powell", options={"xtol": 1e-4, "ftol": 1e-8}).x
    return unpacked(x)


class Error(NamedTuple):
    """How far a row's prediction is off: predicted over measured time, less one."""

    row: Measured
    predicted: float  # images/s of one device
    error: float


def errors(rows: Sequence[Measured], parts: Sequence[Terms], found: Constants) -> list[Error]:
    """Compare the rows with what the constants predict."""
    made = []
    for row, part in zip(rows, parts, strict=True):
        rate = row.batch / found.seconds(row, part)
        made.append(Error(row, rate, row.images_per_s / rate - 1))
    return made


def median_error(of: Iterable[Error]) -> float:
    """Return the median absolute relative error of the time."""
    return float(np.median([abs(each.error) for each in of]))


def spread(of: Iterable[Error]) -> tuple[float, float]:
    """Return the quantiles .1 and .9 of measured over predicted time."""
    low, high = np.quantile([1 / (1 + each.error) for each in of], (0.1, 0.9))
    return float(low), float(high)


def calibrated(rows: Sequence[Measured], counts: Sequence[Counted]) -> dict[str, Any]:
    """Fit half of the rows, test the other half; returns what the results' file holds."""
    parts = [terms(row, found) for row, found in zip(rows, counts, strict=True)]
    chosen = [i for i, row in enumerate(rows) if row.part == FIT]
    constants = fitted([rows[i] for i in chosen], [parts[i] for i in chosen])
    constants = Constants(*({k: round(v, 3) for k, v in each.items()} for each in constants))
    all_errors = errors(rows, parts, constants)
    halves = {part: [e for e in all_errors if e.row.part == part] for part in (FIT, TEST)}
    return {
        "constants": constants._asdict(),
        "spread": [round(x, 2) for x in spread(halves[TEST])],
        "median_error": {part: round(median_error(each), 3) for part, each in halves.items()},
        "rows": [
            {
                "model": e.row.model,
                "resolution": e.row.resolution,
                "chip": e.row.chip,
                "devices": e.row.devices,
                "how": e.row.how,
                "part": e.row.part,
                "measured": e.row.images_per_s,
                "predicted": float(f"{e.predicted:.4g}"),
                "error": round(e.error, 3),
                "counted": [*found.work, found.params],
            }
            for e, found in zip(all_errors, counts, strict=True)
        ],
    }


def used() -> list[Measured]:
    """Return the rows that are fitted or tested."""
    return [row for row in measured() if row.use == "train"]


def read() -> dict[str, Any]:
    """Read the results."""
    return json.loads(RESULTS.read_text())


def table(results: Mapping[str, Any]) -> str:
    """Return the Markdown table of the errors by chip, under the median of all."""
    rows = results["rows"]
    head = ["chip", "how", "rows", "share of the peak", "fitted", "tested", "worst tested"]
    lines = [head, ["---", "---", *["--:"] * 4, "---"]]
    shares = results["constants"]["shares"]
    kinds = sorted({(row["chip"], row["how"]) for row in rows})
    for chip, how in kinds:
        mine = [row for row in rows if (row["chip"], row["how"]) == (chip, how)]
        tested = [row for row in mine if row["part"] == TEST]
        worst = max(tested, key=lambda row: abs(row["error"]), default=None)
        cells = [chip, how, f"{len(mine)}", f"{shares[_same(chip)]:.2f}"]
        cells += [_percent(row for row in mine if row["part"] == FIT), _percent(tested)]
        lines.append([*cells, "" if worst is None else _worst(worst)])
    total = [f"all {len(rows)}", "", "", "", _percent(row for row in rows if row["part"] == FIT)]
    lines.append([*total, _percent(row for row in rows if row["part"] == TEST), ""])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _percent(rows: Iterable[Mapping[str, Any]]) -> str:
    found = [abs(row["error"]) for row in rows]
    return f"{np.median(found):.0%} of {len(found)}" if found else ""


def _worst(row: Mapping[str, Any]) -> str:
    name = re.sub(r"stack (\d+x\d+)[^+]*", r"\1 ", row["model"]).strip().replace("  ", " ")
    return (
        f"{name}, {row['devices']} devices: {row['predicted']:.4g} predicted, "
        f"{row['measured']:.4g} measured"
    )


def main() -> None:
    """Count, fit, test; write the results and the page's table."""
    startup.configure()
    rows = used()
    results = calibrated(rows, [counted(row) for row in rows])
    # A row a line, in place of the empty list at the end.
    text = json.dumps(results | {"rows": []}, indent=1)[:-4]
    lines = ",\n  ".join(json.dumps(row) for row in results["rows"])
    RESULTS.write_text(f"{text}[\n  {lines}\n ]\n}}\n")
    before, _, rest = PAGE.read_text().partition(MARKS[0])
    rest = rest.partition(MARKS[1])[2]
    PAGE.write_text(f"{before}{MARKS[0]}\n\n{table(results)}\n\n{MARKS[1]}{rest}")
    print(json.dumps({k: v for k, v in results.items() if k != "rows"}, indent=1))


if __name__ == "__main__":
    main()
