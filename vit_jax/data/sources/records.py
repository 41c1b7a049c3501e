# SPDX-License-Identifier: Apache-2.0
"""TFDS datasets in ArrayRecord: random access to encoded images, without TensorFlow.

The dataset's directory is found and read as TFDS lays it out on disk, `name[/config]/version`.
Its generating code is never imported: that may take seconds, and may need TensorFlow. The
metadata of a dataset in a bucket are copied to this machine first.
"""

import operator
import os
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from tensorflow_datasets.core.data_sources.base import file_instructions

from vit_jax.data.account import Account
from vit_jax.data.names import class_names, with_known_names
from vit_jax.data.sources import labels, record_counts, tfds_metadata
from vit_jax.data.sources.base import Example, Labelled, absolute_slices, digest_of
from vit_jax.data.sources.partition import options
from vit_jax.data.sources.record_ranges import RecordRanges, Shard
from vit_jax.errors import DataError, UserError, some, unknown
from vit_jax.storage import files, foreign, remote
from vit_jax.storage.files import cache_home


class TfdsSource(Labelled):
    """One split of a prepared TFDS dataset; see `Source`."""

    labels: np.ndarray | None = None  # they lie beside the images, in the records

    def __init__(
        self,
        directory: Path,
        split: str,
        label: str = "",
        image: str = "",
        shards: Mapping[str, remote.FileInfo] | None = None,
    ) -> None:
        """Open a split.

        Args:
            directory: where the metadata are.
            split: as `DataConfig.train_split`.
            label: a feature's name or one of `data.labels`; "" is the only label.
            image: a feature's name; "" is the only image.
            shards: the files by name where they are in a bucket.
        """
        self._directory, self.is_remote = directory, shards is not None
        tfds_metadata.check(directory)
        builder: Any = tfds.builder_from_directory(str(directory))
        info: Any = builder.info
        where = info.full_name.rsplit("/", 1)[0]
        sizes = {key: value.num_examples for key, value in info.splits.items()}
        stored = set(os.listdir(directory)) if shards is None else set(shards)
        split = with_known_names(split, list(sizes))
        slices = absolute_slices(split, sizes, where)
        self._files = sorted({file for key, *_ in slices for file in info.splits[key].filenames})
        for file in self._files:
            if file not in stored:  # TFDS would notice at the first example of that file
                raise FileNotFoundError(f"{file} is missing")
        if shards is None:
            record_counts.check(directory, [info.splits[key] for key, *_ in slices])
        self._image = _feature_key(info, where, "image", image)
        self._is_binary = info.name == "dsprites"
        derived = labels.DERIVED.get(info.name, {})
        if label in derived:
            self.class_names, self._label_of = derived[label]
        else:
            key = _feature_key(info, where, "class label", label, tuple(derived))
            feature, self._label_of = info.features[key], operator.itemgetter(key)
            self.multi_label = isinstance(feature, tfds.features.Sequence)
            self.class_names = class_names((feature.feature if self.multi_label else feature).names)
        self.name = f"{where}{label and f'?label={label}'}[{split}]"
        # Images stay the bytes they are stored as: to decode them, TFDS would need TensorFlow.
        images = [key for key, f in info.features.items() if isinstance(f, tfds.features.Image)]
        self._records: Any = builder.as_data_source(
            split="+".join(f"{key}[{start}:{stop}]" for key, start, stop in slices),
            decoders={key: tfds.decode.SkipDecoding() for key in images},
        )
        strange = stored - {file for each in info.splits.values() for file in each.filenames}
        strange = sorted(file for file in strange if ".array_record" in file)
        notes = [f"of no split, and not read: {some(strange, 3)}"] if strange else []
        self.account = Account(
            unit="records", num_classes=self.num_classes, used=sizes, notes=tuple(notes)
        )
        if shards is None:
            self._sizes = {file: os.path.getsize(directory / file) for file in self._files}
        else:
            self._sizes = {file: shards[file].size for file in self._files}
            self._records.data_source = RecordRanges(
                [
                    Shard(shards[os.path.basename(part.filename)], part.skip, part.take)
                    for part in file_instructions(info, self._records.split)
                ]
            )

    def __len__(self) -> int:
        return len(self._records)

    def read(self, index: int) -> Example:
        """Return an example's encoded image and its label.

        TFDS marks a missing label by -1, for users who need none.

        Raises DataError: a record that is cut or damaged, or a label outside the classes.
        """
        try:
            example = self._records[index]
            image = bytes(example[self._image])
            image = labels.brighten(image) if self._is_binary else image
            label = np.asarray(self._label_of(example), np.int64)
        except UserError:
            raise
        except Exception as error:  # the reader, protobuf and TFDS have many kinds
            reason = _unreadable(self._directory, error)
            raise DataError(f"{self.example_id(index)}: {reason}") from error
        lowest = 0 if self.multi_label else -1
        unfit = label[(label < lowest) | (label >= self.num_classes)]
        if unfit.size:
            why = f"the label is {unfit.flat[0]}; classes are 0 to {self.num_classes - 1}"
            raise DataError(f"{self.example_id(index)}: {why}")
        if not self.multi_label:
            return {"image": image, "label": int(label)}
        hot = np.zeros(self.num_classes, np.uint8)
        hot[label] = 1
        return {"image": image, "label": hot}

    def example_id(self, index: int) -> str:
        return f"{self.name} record {index}"

    def digest(self) -> str:
        """Digest the names and sizes of the split's shards."""
        return digest_of(f"{name} {size}".encode() for name, size in self._sizes.items())


def data_root(data_dir: str) -> str:
    """Return where TFDS datasets lie: `data_dir`, $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return os.path.expanduser(chosen).rstrip("/") or "/"


def open_tfds(name: str, data_dir: str, split: str) -> TfdsSource:
    """Open one split of a TFDS dataset, `name[/config][:version][?label=...]`, in ArrayRecord.

    Raises UserError: not prepared, without random access, damaged, without images or class labels,
    no such split, or a bucket that cannot be read.
    """
    if not name:
        raise UserError("data.name is empty; give 'digits', a prepared TFDS dataset or folder:DIR")
    root = data_root(data_dir)
    name, chosen = options(name)
    if surplus := chosen.keys() - {"label", "image"}:
        raise UserError(f"{name} is a dataset of TFDS: it has no ?{surplus.pop()}=, but ?label=")
    if name == "digits":
        from vit_jax.data.sources.digits import prepare

        root = data_root("~/tensorflow_datasets") if remote.is_remote(root) else root
        directory, shards = prepare(Path(root)), None
    elif remote.is_remote(root):
        directory, shards = _find_remote(name, root)
    else:
        directory, shards = _find(name, Path(root), root), None
    try:
        return TfdsSource(directory, split, **chosen, shards=shards)
    except UserError:
        raise
    except Exception as error:  # TFDS and protobuf have many kinds for a damaged file
        raise _unreadable(directory, error) from error


def _unreadable(directory: Path, error: Exception) -> UserError:
    why = next(iter(str(error).splitlines()), "") or type(error).__name__
    return UserError(
        f"cannot read the dataset in {directory} ({why.rstrip('.')}); if it is damaged, move "
        "that directory away and prepare it again"
    )


def _subdirs(path: Path) -> list[str]:
    there = path.iterdir() if path.is_dir() else ()
    return sorted(p.name for p in there if p.is_dir() and not p.name.startswith("."))


def _versions(names: Iterable[str]) -> list[str]:
    valid = [name for name in names if tfds.core.Version.is_valid(name)]
    return sorted(valid, key=lambda name: tfds.core.Version(name).tuple)


def _find_remote(name: str, root: str) -> tuple[Path, dict[str, remote.FileInfo]]:
    """Copy a dataset's metadata from a bucket; return where they are, and its files by name."""
    listed = remote.find(f"{root}/{name.partition(':')[0].partition('/')[0]}/**")
    told = [file for file in listed if file.path.endswith((".json", ".txt"))]
    versions = [f"{file.path} {file.version}".encode() for file in told]
    # Another place where anything changed: a version that is gone from the bucket is not found.
    place = cache_home() / "vit_jax" / "tfds" / digest_of([root.encode(), *versions])

    def copy(file: remote.FileInfo) -> None:
        path = foreign.inside(place, file.path.removeprefix(f"{root}/"), root)
        if file.size > foreign.MOST:
            raise UserError(f"{file.path} has {file.size:,} bytes, too many for metadata")
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write(path, remote.read(file.path))

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(copy, told))
    found = _find(name, place, root)
    where = f"{root}/{found.relative_to(place)}/"
    names = {f.path.removeprefix(where): f for f in listed if f.path.startswith(where)}
    return found, names


def _find(name: str, root: Path, where: str) -> Path:
    """Return a dataset's directory below `root`, which messages call `where`."""
    base, _, version = name.partition(":")
    base, _, config = base.partition("/")
    if base not in _subdirs(root):
        if os.path.isdir(name):
            raise UserError(f"data.name={name!r} is a folder; write folder:{name}")
        if not base:
            raise UserError(f"data.name={name!r} names no dataset before its version; add it")
        have = ", ".join(sorted({*_subdirs(root)[:8], "digits"}))
        raise UserError(
            f"no dataset {base!r} in {where} (there: {have}); prepare it once with "
            f"`vit_jax prepare {base}`, set data.data_dir or $TFDS_DATA_DIR, or "
            "give a folder of images as data.name=folder:DIR"
        )
    path = root / base
    versions = _versions(_subdirs(path))
    configs = [key for key in _subdirs(path) if key not in versions]
    if config or not versions:
        if config and config not in configs:
            raise unknown(f"config of {base} in {where}", config, configs)
        if not config and len(configs) > 1:
            listed = ", ".join(configs)
            raise UserError(f"{base} has several configs; choose one as {base}/CONFIG: {listed}")
        path = path / (config or "".join(configs))
        versions = _versions(_subdirs(path))
    fit = [each for each in versions if f"{each}.".startswith(f"{version}." if version else "")]
    if version and not fit:
        raise unknown(f"version of {base} in {path}", version, versions)
    path = path / "".join(fit[-1:])
    if not (path / "features.json").is_file() or not (path / "dataset_info.json").is_file():
        lacks = "lacks features.json or dataset_info.json of a finished TFDS dataset"
        raise UserError(f"{path} {lacks}; move it away and prepare it again")
    try:
        stored = tfds_metadata.read(path / tfds_metadata.INFO).get("fileFormat", "tfrecord")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stored != "array_record":
        raise UserError(
            f"{path} is stored as {stored}, which has no random access; write it again with "
            "`tfds build --file_format=array_record` (or `tfds convert_format`)"
        )
    return path


_KINDS = {"image": tfds.features.Image, "class label": tfds.features.ClassLabel}


def _feature_key(
    info: Any, where: str, kind: str, wanted: str = "", derived: tuple[str, ...] = ()
) -> str:
    """Find the image or the label by its type; of several, `wanted` or `supervised_keys`'."""
    found = [key for key, f in info.features.items() if isinstance(_item(f, kind), _KINDS[kind])]
    if wanted:
        if wanted not in found:
            raise unknown(f"{kind} of {where}", wanted, [*found, *derived])
        return wanted
    favourite = dict(zip(_KINDS, info.supervised_keys or (), strict=False)).get(kind, "")
    chosen = [favourite] if favourite in found else found
    if len(chosen) != 1:
        listed = f" ({', '.join(found)})" if found else ""
        names = ", ".join([*found, *derived])
        option = kind.rpartition(" ")[2]
        advice = f"choose one as {info.name}?{option}=NAME: {names}"
        raise UserError(
            f"{where} has {len(found) or 'no'} features of type {kind}{listed}; "
            + (advice if names else "a dataset with one is needed")
        )
    return chosen[0]


def _item(feature: Any, kind: str) -> Any:
    """Return what a sequence of labels is made of."""
    several = kind == "class label" and isinstance(feature, tfds.features.Sequence)
    return feature.feature if several else feature
