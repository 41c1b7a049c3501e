# SPDX-License-Identifier: Apache-2.0
"""Grain over the same ArrayRecord files, written as its guide does, as the other side.

Elements are decoded one by one and then batched; records are parsed by the protocol buffer alone,
without TFDS.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import grain
import numpy as np

from benchmarks.peer_images import DECODERS
from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn


class Decode(grain.transforms.Map):
    """Makes an image and its label of a record; can be pickled, for worker processes."""

    def __init__(self, decoder: str) -> None:
        self._decoder = decoder

    def map(self, element: bytes) -> dict[str, np.ndarray]:
        """Return the fields of an example."""
        from tensorflow_datasets.proto import tf_example_pb2

        messages: Any = tf_example_pb2
        fields = messages.Example.FromString(element).features.feature
        image = DECODERS[self._decoder](fields["image"].bytes_list.value[0])
        return {"image": image, "label": np.asarray(fields["label"].int64_list.value[0])}


def make(
    folder: str, batch_size: int, batches: int, decoder: str, workers: int, loader: bool = False
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream photographs as pipeline_ours.make does.

    Args:
        folder: holds ArrayRecord files as `stored_pipeline.write` writes them.
        batch_size: images a batch.
        batches: in a turn.
        decoder: one of `peer_images.DECODERS`.
        workers: processes besides this one; 0 is threads alone.
        loader: by `grain.DataLoader`, else by `grain.MapDataset`.
    """
    from absl import flags
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
    source: Any = ArrayRecordDataSource(
        [str(each) for each in Path(folder).rglob("*.array_record-*")]
    )
    threads = max(1, 2 * num_cores() // max(workers, 1))
    # Its default, 500, is of images; here they are in batches.
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * threads)
    if loader:
        dataset: Any = grain.DataLoader(
            data_source=source,
            sampler=grain.samplers.IndexSampler(len(source), shuffle=True, seed=0),
            operations=[Decode(decoder), grain.transforms.Batch(batch_size, drop_remainder=True)],
            worker_count=workers,
            read_options=options,
        )
    else:
        dataset = grain.MapDataset.source(source).seed(0).shuffle().repeat()
        dataset = dataset.map(Decode(decoder)).batch(batch_size, drop_remainder=True)
        dataset = dataset.to_iter_dataset(options)
        if workers:
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(workers))
    stream = iter(dataset)
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)
