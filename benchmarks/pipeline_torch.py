# SPDX-License-Identifier: Apache-2.0
"""PyTorch's DataLoader over files, a list of files or Parquet, as the other side of a comparison.

With torchvision's ImageFolder and transforms, as its tutorials have it, or with the fast decoder;
Parquet through Hugging Face's `datasets`, which maps an Arrow file that it makes of it once.
"""

import csv
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import peer_images
from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn

FORMATS = ("ImageFolder", "list", "parquet")


def make(
    folder: str, batch_size: int, batches: int, kind: str, start: str
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream photographs as pipeline_ours.make does.

    Args:
        folder: as `photos.write_photos` and `stored_pipeline.write` lay it out.
        batch_size: images a batch.
        batches: in a turn.
        kind: one of `FORMATS`.
        start: of the worker processes: "fork" or "spawn".
    """
    import torch

    torch.set_num_threads(1)
    if kind == "ImageFolder":
        dataset: Any = _image_folder(Path(folder, "train"))
    elif kind == "parquet":
        dataset = _Parquet(folder)
    else:
        dataset = _Listed(Path(folder, "labels.csv"))
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size,
        sampler=_Endless(dataset),
        num_workers=num_cores(),
        multiprocessing_context=start,
        prefetch_factor=3,
        drop_last=True,
    )
    stream = iter(loader)
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)


class _Endless:
    """A sampler of one random order after another."""

    def __init__(self, dataset: Any) -> None:
        self._count = len(dataset)

    def __iter__(self) -> Any:
        while True:
            yield from np.random.permutation(self._count).tolist()


def _image_folder(root: Path) -> Any:
    import torch

    for op in ("nms", "qnms"):  # torchvision's binaries may be those of another torch
        torch.library.define(
            f"torchvision::{op}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
    from torchvision import datasets, transforms

    side = peer_images.SIDE
    steps = [
        transforms.RandomResizedCrop(side, scale=(0.05, 1.0), ratio=(0.75, 1.33)),
        transforms.RandomHorizontalFlip(),
        transforms.PILToTensor(),
    ]
    return datasets.ImageFolder(str(root), transforms.Compose(steps))


class _Listed:
    """Images and labels by a CSV file, decoded by the fast decoder."""

    def __init__(self, table: Path) -> None:
        with table.open() as stream:
            rows = list(csv.DictReader(stream))
        self._paths = [str(table.parent / row["path"]) for row in rows]
        self._labels = [int(row["label"] == "b") for row in rows]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        with open(self._paths[index], "rb") as stream:
            return peer_images.fast(stream.read()), self._labels[index]


class _Parquet:
    """Images and labels by Hugging Face's `datasets`, decoded by the fast decoder."""

    def __init__(self, folder: str) -> None:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        import datasets  # pyright: ignore[reportMissingImports]

        rows = datasets.load_dataset(
            "parquet",
            data_files=f"{folder}/parquet/*.parquet",
            split="train",
            cache_dir=tempfile.mkdtemp(dir=folder),
        )
        self._rows = rows.cast_column("image", datasets.Image(decode=False))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[np.ndarray, int]:
        row = self._rows[index]
        return peer_images.fast(row["image"]["bytes"]), row["label"]
