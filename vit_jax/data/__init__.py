# SPDX-License-Identifier: Apache-2.0
"""The input pipeline: sources, per-image transforms on the host, batches, mixing on the device."""

from vit_jax.data.augment.mix import normalize, normalize_rows, targets
from vit_jax.data.checks import (
    check,
    check_bands,
    check_channels,
    check_fixed,
    check_transform,
    check_units,
)
from vit_jax.data.config import (
    AS_SHOWN,
    GRIDS,
    Background,
    Crop,
    CropRule,
    DataConfig,
    MixConfig,
    Partner,
    PixelType,
    Reading,
    Resize,
    TransformConfig,
    is_native,
    reading,
)
from vit_jax.data.sources.base import (
    WITH_TARGETS,
    CachedSource,
    Sample,
    Source,
    SplitError,
    all_captions,
    has_captions,
    select_classes,
    short_name,
    split_of,
    target_kind,
    target_of,
)
from vit_jax.data.sources.captions import Captions, Tokenized
from vit_jax.data.sources.partition import DENSE, full_name
from vit_jax.data.stream.batches import MAX_CACHED_BYTES, Batch, BatchIterator
from vit_jax.data.stream.pipeline import eval_batches, train_batches
from vit_jax.data.stream.transform import View, evaluation_view, one_view
from vit_jax.errors import UserError


def open_source(
    name: str,
    data_dir: str = "",
    split: str = "train",
    *,
    cache: bool = False,
    classes: tuple[int, ...] = (),
    bands: tuple[str, ...] = (),
    captions: Captions = Captions.UNREAD,
    target: str = "",
) -> Source:
    """Open one split of a dataset, reading only its metadata (of a folder: its file names).

    Arguments are as in `DataConfig`, `split` as its `train_split`. "digits" is written first where
    it does not exist. With `classes`, a TFDS dataset is read once from end to end: its labels lie
    in the records. With `captions` its examples may have these and no label. `target`, a
    `TargetKind`, is what of their pixels is wanted; "" is what the dataset has in the first place.

    Raises UserError: no such dataset, split or class, or one in a shape that cannot be read; no
    captions, or no targets of the kind, that are needed.
    """
    # Late imports: tensorflow_datasets takes half a second.
    kind, _, path = full_name(name).partition(":")
    if kind == "folder":
        from vit_jax.data.sources.folders import open_folder

        source: Source = open_folder(path, split, bands)
    elif kind == "csv":
        from vit_jax.data.sources.csv_files import open_csv

        source = open_csv(path, split, captions, bands)
    elif kind == "tar":
        from vit_jax.data.sources.sharded.tar_files import open_tar

        source = open_tar(path, split, captions)
    elif kind == "parquet":
        from vit_jax.data.sources.dense.columns import with_targets, without_label
        from vit_jax.data.sources.sharded.parquet_files import open_parquet

        source = open_parquet(without_label(path, target), split, captions, bands)
        source = with_targets(source, path, target)
    elif kind == "hf":
        from vit_jax.data.sources.dense.columns import with_targets, without_label
        from vit_jax.data.sources.sharded.hub_files import open_hf

        source = open_hf(without_label(path, target), split, captions, bands)
        source = with_targets(source, path, target)
    elif f"{kind}:" in DENSE:
        from vit_jax.data.sources.dense import open_dense

        source = open_dense(kind, path, split, target)
    elif name.partition("/")[0] == "fractals":
        from vit_jax.data.sources.fractals import open_fractals

        source = open_fractals(name, split)
    else:
        from vit_jax.data.sources.records import open_tfds

        source = open_tfds(name, data_dir, split, captions, target)
    if captions is Captions.NEEDED and not has_captions(source):
        kinds = "csv:, tar:, parquet:, hf: and TFDS's datasets"
        raise UserError(f"{source.name} has no captions; {kinds} may have some")
    if target and target_kind(source) != target:
        raise UserError(f"{source.name} has no {target} as targets; {WITH_TARGETS} may have some")
    if classes:
        return select_classes(source, classes, cache=cache)
    return CachedSource(source) if cache else source
