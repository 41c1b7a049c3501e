# SPDX-License-Identifier: Apache-2.0
"""The examples of a source written as WebDataset tars, as Parquet files and as the Hub has them."""

import io
import itertools
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax.data import Source


def write_tar(path: Path, files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    """Write files by name, in their order."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def as_tars(source: Source, folder: Path, split: str, count: int) -> None:
    """Write a source as `count` shards "mine-SPLIT-000.tar" with KEY.cls, and classnames.txt."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classnames.txt").write_text("\n".join(source.class_names) + "\n")
    for shard, rows in enumerate(_shares(source, count)):
        files = {}
        for i in rows:
            example = source.read(i)
            files[f"{i:05}.jpg"] = example["image"]
            files[f"{i:05}.cls"] = b"%d" % example["label"]
        write_tar(folder / f"mine-{split}-{shard:03}.tar", files)


def as_parquet(source: Source, folder: Path, split: str, count: int, rows: int = 3) -> None:
    """Write a source as the Hub's Parquet files, with `rows` a row group."""
    folder.mkdir(parents=True, exist_ok=True)
    for shard, chosen in enumerate(_shares(source, count)):
        examples = [source.read(i) for i in chosen]
        table = hub_table(
            {
                "image": [
                    {"bytes": e["image"], "path": f"{i}.jpg"} for i, e in enumerate(examples)
                ],
                "label": [int(e["label"]) for e in examples],
            },
            {
                "image": {"_type": "Image"},
                "label": {"names": list(source.class_names), "_type": "ClassLabel"},
            },
        )
        pq.write_table(
            table, folder / f"{split}-{shard:05}-of-{count:05}.parquet", row_group_size=rows
        )


def hub_table(columns: dict[str, Any], features: dict[str, Any] | None = None) -> pa.Table:
    """Make a table, with the Hub's metadata if `features` are given."""
    table = pa.table(columns)
    if features is None:
        return table
    text = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": text})


def _shares(source: Source, count: int) -> list[range]:
    ends = [len(source) * i // count for i in range(count + 1)]
    return [range(*pair) for pair in itertools.pairwise(ends)]
