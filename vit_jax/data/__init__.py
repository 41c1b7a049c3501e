# SPDX-License-Identifier: Apache-2.0
"""The input pipeline: sources, per-image transforms on the host, batches, mixing on the device."""

from vit_jax.data.catalog import open_source
from vit_jax.data.checks import check, check_fixed, check_transform
from vit_jax.data.config import (
    Crop,
    CropRule,
    DataConfig,
    MixConfig,
    Partner,
    Resize,
    TransformConfig,
)
from vit_jax.data.mix import normalize, targets
from vit_jax.data.pipeline import batch_spec, eval_batches, train_batches
from vit_jax.data.pixel_cache import MAX_CACHED_BYTES
from vit_jax.data.prefetch import Batch, BatchIterator
from vit_jax.data.sources import Source, short_name, split_of
from vit_jax.data.transform import evaluation_view
from vit_jax.data.views import View, one_view
