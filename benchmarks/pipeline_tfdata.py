# SPDX-License-Identifier: Apache-2.0
"""tf.data with its fused decode and crop, as the other side of a comparison.

Given every advantage: the fast inverse DCT and upsampling, no order to keep, file names in memory.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.pipeline_ours import timed
from benchmarks.record import num_cores
from benchmarks.turns import Turn


def make(
    folder: str, batch_size: int, batches: int, autotune: bool
) -> tuple[dict[str, Any], Callable[[], Turn]]:
    """Stream a folder's photographs as pipeline_ours.make does.

    Args:
        folder: as `photos.write_photos` lays it out.
        batch_size: images a batch.
        batches: in a turn.
        autotune: let tf.data choose its parallelism; else it is one call a core.
    """
    import tensorflow as tf  # pyright: ignore[reportMissingImports, reportMissingModuleSource]

    tf.config.set_visible_devices([], "GPU")
    paths = sorted(str(path) for path in Path(folder, "train").glob("*/*.jpg"))
    labels = [int(Path(path).parent.name == "b") for path in paths]

    def transform(path: Any, label: Any) -> dict[str, Any]:
        data = tf.io.read_file(path)
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
    dataset = tf.data.Dataset.from_tensor_slices((paths, labels)).shuffle(len(paths)).repeat()
    dataset = dataset.map(transform, num_parallel_calls=calls, deterministic=False)
    dataset = dataset.batch(batch_size, drop_remainder=True).prefetch(2)
    stream = dataset.as_numpy_iterator()
    next(stream)
    return {}, lambda: timed(stream, batches, batch_size)
