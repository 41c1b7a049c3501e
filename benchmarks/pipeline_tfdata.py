# SPDX-License-Identifier: Apache-2.0
"""tf.data with its fused decode and crop, as the other side of a comparison.

Given every advantage: the fast inverse DCT and upsampling, no order to keep, file names in memory.
"""

import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn

_FILES = 8


def make(
    folder: str, batch_size: int, batches: int, autotune: bool, kind: str = "files"
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream a folder's photographs as pipeline_ours.make does.

    Args:
        folder: as `photos.write_photos` lays it out.
        batch_size: images a batch.
        batches: in a turn.
        autotune: let tf.data choose its parallelism; else it is one call a core.
        kind: what is read: "files"; "tfrecord", files of a label and an image each, which are
            written first; "tar" and "arrayrecord", which tf.data has no reader for, by Python's
            readers and `from_generator`.
    """
    import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

    tf.config.set_visible_devices([], "GPU")
    paths = sorted(str(path) for path in Path(folder, "train").glob("*/*.jpg"))
    labels = [int(Path(path).parent.name == "b") for path in paths]

    def of_file(path: Any, label: Any) -> dict[str, Any]:
        return crop(tf.io.read_file(path), label)

    def of_record(row: Any) -> dict[str, Any]:
        return crop(
            tf.strings.substr(row, 1, -1), tf.strings.to_number(tf.strings.substr(row, 0, 1))
        )

    def crop(data: Any, label: Any) -> dict[str, Any]:
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.image.extract_jpeg_shape(data),
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        box = tf.concat([begin[:2], size[:2]], axis=0)
        image = tf.image.decode_and_crop_jpeg(
            data, box, channels=3, dct_method="INTEGER_FAST", fancy_upscaling=False
        )
        image = tf.image.random_flip_left_right(tf.image.resize(image, (224, 224)))
        return {"image": tf.cast(image, tf.uint8), "label": label}

    calls = tf.data.AUTOTUNE if autotune else num_cores()
    if kind == "tfrecord":
        files = _records(Path(folder, "tfrecord"), paths, labels)
        dataset = tf.data.Dataset.from_tensor_slices(files).shuffle(len(files)).repeat()
        dataset = dataset.interleave(tf.data.TFRecordDataset, num_parallel_calls=calls).shuffle(200)
        dataset = dataset.map(of_record, num_parallel_calls=calls, deterministic=False)
    elif kind != "files":
        read = {"tar": _members, "arrayrecord": _array_records}[kind]
        spec = (tf.TensorSpec((), tf.string), tf.TensorSpec((), tf.int32))
        dataset = tf.data.Dataset.from_generator(lambda: read(Path(folder)), output_signature=spec)
        dataset = dataset.repeat().shuffle(200)
        dataset = dataset.map(crop, num_parallel_calls=calls, deterministic=False)
    else:
        dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
        dataset = dataset.map(of_file, num_parallel_calls=calls, deterministic=False)
    dataset = dataset.batch(batch_size, drop_remainder=True).prefetch(2)
    stream = dataset.as_numpy_iterator()
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)


def _members(folder: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the images of tar shards and their labels, from end to end."""
    for path in sorted((folder / "tar").glob("*.tar")):
        with tarfile.open(path) as shard:
            data = b""
            for member in shard:
                content = shard.extractfile(member)
                assert content is not None
                if member.name.endswith(".jpg"):
                    data = content.read()
                else:
                    yield data, int(content.read())


def _array_records(folder: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the images of ArrayRecord files and their labels in a random order."""
    from array_record.python.array_record_data_source import ArrayRecordDataSource
    from tensorflow_datasets.proto import tf_example_pb2

    source = ArrayRecordDataSource([str(each) for each in folder.rglob("*.array_record-*")])
    messages: Any = tf_example_pb2
    for index in np.random.permutation(len(source)).tolist():
        fields = messages.Example.FromString(source[index]).features.feature
        yield fields["image"].bytes_list.value[0], fields["label"].int64_list.value[0]


def _records(folder: Path, paths: Sequence[str], labels: Sequence[int]) -> list[str]:
    """Write TFRecord files unless they are there; returns their paths."""
    import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

    files = [str(folder / f"{i}.tfrecord") for i in range(_FILES)]
    if not folder.exists():
        folder.mkdir()
        for i, file in enumerate(files):
            with tf.io.TFRecordWriter(file) as writer:
                for path, label in zip(paths[i::_FILES], labels[i::_FILES], strict=True):
                    writer.write(b"%d%b" % (label, Path(path).read_bytes()))
    return files
