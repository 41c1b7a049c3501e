# SPDX-License-Identifier: Apache-2.0
"""WebDataset's tar shards through PyTorch's loader, as the other side of a comparison.

Given every advantage: a shuffle of few examples, a process a core, and, in one setting, the decoder
and the resize of this project.
"""

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.peer_images import DECODERS
from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn


def make(
    urls: Sequence[str], batch_size: int, batches: int, decoder: str
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream photographs as pipeline_ours.make does.

    Args:
        urls: tar shards, paths or addresses.
        batch_size: images a batch.
        batches: in a turn.
        decoder: one of `peer_images.DECODERS`.
    """
    import webdataset  # pyright: ignore[reportMissingImports]

    dataset = webdataset.WebDataset(list(urls), shardshuffle=len(urls), empty_check=False)
    dataset = dataset.repeat().shuffle(200).to_tuple("jpg", "cls")
    dataset = dataset.map_tuple(DECODERS[decoder], int)
    loader = webdataset.WebLoader(
        dataset.batched(batch_size), batch_size=None, num_workers=num_cores(), prefetch_factor=3
    )
    stream = iter(loader)
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)
