# SPDX-License-Identifier: Apache-2.0
"""What timm says of the images of a published file: by the name of the file, or beside it.

published.tsv has timm 1.0.31's pretrained_cfg of every tag of the networks here; a config.json of
timm's form on the Hugging Face Hub has the same of one file. tests/parity/published_table.py makes
the former.
"""

import functools
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vit_jax.errors import UserError, shown

COLUMNS = (
    *("name", "size", "test_size", "crop", "test_crop"),
    *("mode", "interpolation", "mean", "std", "file"),
)
Size = tuple[int, int]
_CONFIG, _MAX_CONFIG = "config.json", 1 << 22
_MOST = 1e6  # of any number there


class Facts(NamedTuple):
    """What a network was published with.

    Attributes:
        source: who says so.
        size: (height, width) of its images.
        test_size: those that it is tested at, where they are larger.
        crop: size over that of the resized image; test_crop: at the test size.
        mode: "center" or "squash".
        interpolation: "bicubic" or "bilinear", both antialiased.
        mean, std: of the input, one a channel.
    """

    source: str
    size: Size
    test_size: Size | None
    crop: float
    test_crop: float | None
    mode: str
    interpolation: str
    mean: tuple[float, ...]
    std: tuple[float, ...]


def find(path: str) -> Facts | None:
    """Return what is known of a file: by the config.json beside it, else by its name, else None.

    A config.json that names another network than the file's own name does is of another file.
    Names are timm's, `vit_base_patch16_224.dino`, of the file (without a tag: timm's default for
    the architecture) or of a folder that it is in; or that of the authors' own file.

    Raises:
        UserError: a config.json that cannot be used; names it and what is wrong.
    """
    place = Path(os.path.expanduser(path)).absolute()
    beside = _beside(place)
    if beside is None:
        return _by_name(place)
    facts, network = beside
    own = _own_name(place)
    architecture = own.partition(".")[0]
    # A name without a tag is an architecture's: its default is only one of its tags.
    tagged = own != _table()[1].get(place.stem)
    same = network in ("", own, architecture) or (
        not tagged and network.partition(".")[0] == architecture
    )
    return facts if same or not own else _table()[0][own]


def _own_name(place: Path) -> str:
    """Return the published network that a file's own name names, or ""."""
    table, defaults, files = _table()
    name = files.get(place.name) or defaults.get(place.stem, place.stem)
    return name if name in table else ""


def _by_name(place: Path) -> Facts | None:
    table = _table()[0]
    # The Hub's cache is models--timm--NAME/snapshots/HASH/model.safetensors.
    for part in (
        _own_name(place),
        *(folder.name.rpartition("--")[2] for folder in place.parents[:3]),
    ):
        if part in table:
            return table[part]
    return None


@functools.cache
def _table() -> tuple[Mapping[str, Facts], Mapping[str, str], Mapping[str, str]]:
    """Return the facts by name, and names by architecture (its default's) and by authors' file."""
    lines = Path(__file__).with_name("published.tsv").read_text("utf-8").splitlines()
    table: dict[str, Facts] = {}
    defaults: dict[str, str] = {}
    files: dict[str, str] = {}
    for line in lines[1:]:
        row = dict(zip(COLUMNS, line.split("\t"), strict=True))
        name = row["name"]
        table[name] = Facts(
            source=f"timm's table ({name})",
            size=_sides(row["size"]),
            test_size=_sides(row["test_size"]) if row["test_size"] else None,
            crop=float(row["crop"]),
            test_crop=float(row["test_crop"]) if row["test_crop"] else None,
            mode=row["mode"],
            interpolation=row["interpolation"],
            mean=tuple(map(float, row["mean"].split(","))),
            std=tuple(map(float, row["std"].split(","))),
        )
        defaults.setdefault(name.partition(".")[0], name)
        if row["file"]:
            files[row["file"]] = name
    return table, defaults, files


def _sides(text: str) -> Size:
    height, _, width = text.partition("x")
    return int(height), int(width)


def _beside(place: Path) -> tuple[Facts, str] | None:
    """Return what the config.json beside a file says, and of which network, "" if it does not."""
    file = place.parent / _CONFIG
    try:
        if not file.is_file():
            return None
        with file.open("rb") as stream:
            tree = json.loads(stream.read(_MAX_CONFIG))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "no JSON"
        raise UserError(
            f"{shown(str(file))}: {reason}; it lies beside the weights and would say how their "
            "images are prepared: mend it or take it away"
        ) from None
    # timm once wrote pretrained_cfg alone. Other libraries' files of this name say nothing of it.
    cfg = tree.get("pretrained_cfg", tree) if isinstance(tree, dict) else None
    if not isinstance(cfg, dict) or "mean" not in cfg:
        return None
    network, tag = tree.get("architecture"), cfg.get("tag")
    name = f"{network}.{tag}" if network and tag and "." not in str(network) else network
    return _checked(cfg, shown(str(file))), name if isinstance(name, str) else ""


def _checked(cfg: Mapping[str, Any], name: str) -> Facts:
    """Read timm's pretrained_cfg; what it leaves out has timm's defaults."""

    def numbers(key: str, default: Any, count: int, least: float) -> tuple[float, ...]:
        value = cfg.get(key)
        value = default if value is None else value
        listed = value if isinstance(value, list | tuple) else [value]
        fit = all(type(n) in (int, float) and max(least, -_MOST) <= n <= _MOST for n in listed)
        if not fit or len(listed) != count:
            bound = f" from {least:g} on" if math.isfinite(least) else ""
            many = f"{count} numbers" if count > 1 else "a number"
            raise UserError(f"{name}: {key}={value!r} must be {many}{bound}")
        return tuple(map(float, listed))

    def choice(key: str, *choices: str) -> str:
        value = cfg.get(key) or choices[0]
        if value not in choices:
            raise UserError(f"{name}: {key}={value!r} must be {' or '.join(choices)}")
        return value

    size = numbers("input_size", (3, 224, 224), 3, 1.0)
    channels = int(size[0])
    test = numbers("test_input_size", size, 3, 1.0)
    (crop,) = numbers("crop_pct", 0.875, 1, 0.001)
    (test_crop,) = numbers("test_crop_pct", crop, 1, 0.001)
    if max(crop, test_crop) > 1:
        raise UserError(f"{name}: crop_pct={max(crop, test_crop):g} must be at most 1")
    std = numbers("std", (0.229, 0.224, 0.225), channels, 1e-9)
    return Facts(
        source=name,
        size=(int(size[1]), int(size[2])),
        test_size=(int(test[1]), int(test[2])) if test != size else None,
        crop=crop,
        test_crop=test_crop if test_crop != crop else None,
        mode=choice("crop_mode", "center", "squash"),
        interpolation=choice("interpolation", "bicubic", "bilinear"),
        mean=numbers("mean", (0.485, 0.456, 0.406), channels, -math.inf),
        std=std,
    )
