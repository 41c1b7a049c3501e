# SPDX-License-Identifier: Apache-2.0
"""The page of all named models: a table of their sizes, and of whose weights each loads."""

import hashlib
import inspect
import json
import os
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import models, trees
from vit_jax.cost import flops
from vit_jax.weights.published import table, timm_config
from website import tables

_WEIGHTS = Path(__file__).parents[1] / "docs" / "weights.md"
_CACHE = Path(__file__).parents[1] / ".cache" / "site" / "models.json"
_LEAD = """# All models

Every named variant, by `vit_jax.create_model(NAME)` or `--config.model=NAME`, at its own size and
1,000 classes; any of them takes other sizes and classes. A click on a column's head sorts, the
field filters. GMACs are billions of multiply-adds of one image, half the FLOPs.
[Models](../models.md) is about the families and their fields, [Weights](../weights.md) about files;
`vit_jax models` prints the same numbers.

"""


class Row(NamedTuple):
    """A named variant; `weights` are references and files that it loads."""

    name: str
    family: str
    size: tuple[int, int]
    params: int
    macs: int
    weights: tuple[str, ...]


def rows() -> list[Row]:
    """Return a row for each named variant, with its sizes by tracing it: nothing is allocated.

    That takes most of a minute, so the sizes are kept in .cache until a model's code changes.
    """
    sources, sizes = _sources(), _kept_sizes()
    return [
        Row(
            name=name,
            family=models.family(cfg).name,
            size=models.input_shape(cfg)[:2],
            params=sizes[name][0],
            macs=sizes[name][1],
            weights=tuple(sources[name]),
        )
        for name, cfg in models.VARIANTS.items()
    ]


def traced(cfg: models.ModelConfig) -> tuple[int, int]:
    """Return the parameters and multiply-adds of a model, by one trace of its initialisation.

    That holds a forward pass; to draw parameters multiplies no matrices.
    """
    cfg = models.looped(cfg)  # traces fastest and counts the same
    image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    begin = jax.jit(models.create(cfg).init_with_output)  # of which JAX keeps the trace
    macs = flops.count(begin, key, image) // 2
    _, variables = jax.eval_shape(begin, key, image)
    return trees.num_params(variables["params"]), macs


def _kept_sizes() -> dict[str, tuple[int, int]]:
    key = _key()
    kept = json.loads(_CACHE.read_text()) if _CACHE.is_file() else {}
    if kept.get("of") != key:
        kept = {"of": key, "sizes": {name: traced(cfg) for name, cfg in models.VARIANTS.items()}}
        _CACHE.parent.mkdir(parents=True, exist_ok=True)
        written = _CACHE.with_suffix(f".{os.getpid()}")  # another build may read
        written.write_text(json.dumps(kept))
        written.replace(_CACHE)
    return kept["sizes"]


def _key() -> str:
    """Return a digest of what the sizes depend on."""
    package = Path(models.__file__).parent
    files = [*package.rglob("*.py"), *package.rglob("*.tsv"), Path(flops.__file__)]
    texts = b"".join(file.read_bytes() for file in sorted(files))
    texts += inspect.getsource(traced).encode()
    return hashlib.sha256(texts + jax.__version__.encode()).hexdigest()


def _sources() -> dict[str, list[str]]:
    """Return where weights of a variant are: files of docs/weights.md, timm's of the Hub."""
    found = defaultdict(list)
    for file, name in re.findall(r'^\| (.+?) \| `variant\("(\w+)"', _WEIGHTS.read_text(), re.M):
        base = re.sub(r"_\d+$", "", name)
        known = name if name in models.VARIANTS else base
        found[known].append(file.strip("`"))
    for architecture, (name, _) in timm_config.architectures().items():
        found[name] += [f"hub:timm/{tag}" for tag in table.tags(architecture)]
    return found


def page() -> str:
    """Return the page."""
    head = ("model", "family", "pixels", "parameters", "GMACs", "weights")
    body = []
    for row in rows():
        height, width = row.size
        listed = "<br>".join(tables.code(each) for each in row.weights)
        count = len(row.weights)
        weights = f"<details><summary>{count} &#9662;</summary>{listed}</details>" if count else ""
        body.append(
            (
                tables.Cell(tables.code(row.name)),
                tables.Cell(row.family),
                tables.Cell(f"{height}x{width}", height * width),
                tables.Cell(f"{row.params:,}", row.params),
                tables.Cell(f"{row.macs / 1e9:,.2f}", row.macs),
                tables.Cell(weights, count),
            )
        )
    return _LEAD + tables.table(head, body, "sortable") + "\n"
