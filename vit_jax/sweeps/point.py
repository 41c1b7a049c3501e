# SPDX-License-Identifier: Apache-2.0
"""A point of a sweep: one run, its name, its directory and its price; and the list of them."""

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.errors import UserError
from vit_jax.process import escapes
from vit_jax.settings.fields import is_free
from vit_jax.storage import files, foreign
from vit_jax.sweeps import in_bucket
from vit_jax.sweeps.grid import Overrides
from vit_jax.workdir import folder as workdir

MANIFEST = "manifest.jsonl"
RUNS = "runs"
_POINTS = "points"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Point:
    """One run of a sweep; a line of its manifest.

    Attributes:
        run: hash of the config, the name of the run's directory.
        name: the fields in which it differs from its neighbours.
        config: the base file, with its argument if it has one.
        metric: what the sweep compares, such as "val/loss".
        params: trained parameters.
        flops: of all training steps, a multiply-add counted as two.
        examples: images seen, repeats included.
        tokens: of those images; None where the model has none.
        seconds: estimated for the training steps, least and most; None without a device.
    """

    run: str
    name: str
    config: str
    overrides: Overrides
    metric: str
    params: int
    flops: float
    examples: int
    tokens: int | None
    steps: int
    seconds: tuple[float, float] | None

    def arguments(self) -> list[str]:
        """Return the flags of `main.py` that make the run's config."""
        return arguments(self.config, self.overrides)

    def workdir(self, place: Path) -> Path:
        """Return the run's directory in a sweep's directory.

        Raises UserError: a link leads out of that.
        """
        return foreign.inside(place, f"{RUNS}/{self.run}", f"{place}")


def arguments(config: str, overrides: Overrides) -> list[str]:
    """Return the flags of `main.py` that read a base file and change fields of it."""
    changed = [f"--config.{field}={_text(value)}" for field, value in overrides.items()]
    return [f"--config={config}", *changed]


def _text(value: Any) -> str:
    def as_tuple(value: Any) -> Any:
        return tuple(map(as_tuple, value)) if isinstance(value, list | tuple) else value

    return str(value).lower() if isinstance(value, bool) else str(as_tuple(value))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _text(value)


def run_hash(cfg: Config) -> str:
    """Hash what a run computes and measures: the same where only its layout or place differs.

    Fields at their defaults are left out: one that a later version adds changes no hash.
    """
    base = Config(model=type(cfg.model)())
    default, tree = (config_json.flatten(config_json.to_json(each)) for each in (base, cfg))
    kept = {
        field: value
        for field, value in tree.items()
        if (field not in default or default[field] != value or field == "model.family")
        and (not is_free(cfg, field) or field.startswith("evals."))
    }
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def names(points: Sequence[Overrides]) -> list[str]:
    """Name each point by the fields in which the points differ: "dim=64 lr=0.001"."""
    fields = list(dict.fromkeys(field for point in points for field in point))
    differing = [field for field in fields if len({repr(point.get(field)) for point in points}) > 1]
    fields = differing or fields
    last = [field.rpartition(".")[2] for field in fields]  # shown where it names no other field
    pairs = zip(fields, last, strict=True)
    shown = {field: short if last.count(short) == 1 else field for field, short in pairs}
    return [
        " ".join(f"{shown[field]}={_shown(point[field])}" for field in shown if field in point)
        or "base"
        for point in points
    ]


def write_manifest(place: Path, points: Sequence[Point]) -> None:
    """Write one JSON line for each point."""
    files.write(place / MANIFEST, "".join(f"{to_line(point)}\n" for point in points))
    in_bucket.send(place / MANIFEST)


def add_to_manifest(place: Path, point: Point) -> None:
    """Add the line of a point that a search has come up with, unless it is there.

    In a bucket, where several would write one object, it is a file of its own.
    """
    if workdir.address(place):
        file = place / _POINTS / f"{point.run}.json"
        file.parent.mkdir(exist_ok=True)
        files.write(file, f"{to_line(point)}\n")
        in_bucket.send(file)
        return
    with open(place / MANIFEST, "a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        data = file.read()
        lines, torn = _lines(data)
        if torn:  # a new line must not be added to half of one
            file.truncate(len(data) - len(torn))
        elif lines and not data.endswith(b"\n"):
            file.write(b"\n")
        if all(json.loads(line)["run"] != point.run for line in lines):
            file.write(f"{to_line(point)}\n".encode())


def to_line(point: Point) -> str:
    """Write a point as a line of the manifest."""
    return json.dumps(dataclasses.asdict(point))


def read_manifest(place: Path) -> list[Point]:
    """Read a sweep's points.

    A line that a search, a full disk or a lost machine cut short is left out, with a warning.

    Raises UserError: no manifest in `place`, or a line that is no point.
    """
    path, more = place / MANIFEST, sorted((place / _POINTS).glob("*.json"))
    if more:
        return [_read_line(file, 1, foreign.read(file).decode(errors="replace")) for file in more]
    if not path.is_file():
        command = f"vit_jax sweep run FILE --out={place}"
        raise UserError(f"{place} holds no {MANIFEST}; it is written by: {command}")
    lines, torn = _lines(foreign.read(path))
    if torn:
        what = f"line {len(lines) + 1}, is torn: left out, {len(lines)} are read"
        print(f"warning: {path}, {what}", file=sys.stderr)
    return [_read_line(path, i, line) for i, line in enumerate(lines, 1)]


def _lines(data: bytes) -> tuple[list[str], bytes]:
    """Return a manifest's lines, and of its last one what is there where it has no end."""
    end = data.rfind(b"\n") + 1
    torn = data[end:]
    with contextlib.suppress(ValueError):  # written by hand, without the last line's end
        json.loads(torn)
        end, torn = len(data), b""
    return data[:end].decode(errors="replace").splitlines(), torn


def _read_line(path: Path, number: int, line: str) -> Point:
    try:
        values: dict[str, Any] = json.loads(line)
        if not isinstance(values, dict) or set(values) != set(_FIELDS):
            raise ValueError("it has other fields")
        if (seconds := values["seconds"]) is not None:
            # Versions before a range was given wrote one number.
            least, most = seconds if isinstance(seconds, list) else (seconds, seconds)
            values["seconds"] = float(least), float(most)
        for field, kind in _FIELDS.items():
            fit = isinstance(values[field], kind) and not isinstance(values[field], bool)
            if not fit or (kind in (int, _NUMBER) and not 0 <= values[field] < float("inf")):
                raise ValueError(f"its {field} is {str(values[field])[:80]!r}")
        if not values["steps"]:
            raise ValueError("it has no steps")
        if why := foreign.fault(values["run"]):
            raise ValueError(f"its run, {values['run'][:80]!r}, {why}")
        if "/" in values["run"] or values["run"].startswith((".", "-")):
            raise ValueError(f"its run, {values['run'][:80]!r}, is no name of a directory")
        if not all(re.fullmatch(r"[A-Za-z_][\w.]*", field) for field in values["overrides"]):
            raise ValueError("its overrides are of no fields of a config")
        return Point(**values)
    except (ValueError, TypeError, RecursionError) as error:
        what = escapes.terminal(error)
        raise UserError(f"{path}, line {number}, is no point of a sweep: {what}") from None


_NUMBER = (int, float)
_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("run", "name", "config", "metric"), str),
    "overrides": dict,
    **dict.fromkeys(("params", "examples", "steps"), int),
    "flops": _NUMBER,
    "tokens": (int, type(None)),
    "seconds": (tuple, type(None)),
}
