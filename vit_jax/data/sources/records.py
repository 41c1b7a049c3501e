# SPDX-License-Identifier: Apache-2.0
"""TFDS datasets in ArrayRecord: random access to encoded images, without TensorFlow.

The dataset's directory is found and read as TFDS lays it out on disk, `name[/config]/version`.
Its generating code is never imported: that may take seconds, and may need TensorFlow. The
metadata of a dataset in a bucket are copied to this machine first, and looked through before TFDS
reads them: it imports the module of every `pythonClassName` in features.json, and makes paths of
names. Files that hold fewer or more records than the metadata tell are refused.

`NAME?label=LABEL` names a label: one of the dataset's own, or one of VTAB's (arXiv:1910.04867) that
no record holds as such, derived as task_adaptation (google-research) does from the objects in a
scene, or by putting classes together.
"""

import functools
import itertools
import json
import operator
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import tensorflow_datasets as tfds
from array_record.python import array_record_module  # type: ignore[attr-defined]
from tensorflow_datasets.core.data_sources.base import file_instructions
from tensorflow_datasets.proto import tf_example_pb2

from vit_jax.data.account import Account
from vit_jax.data.images.decode import decode
from vit_jax.data.names import class_names, with_known_names
from vit_jax.data.sources.base import Example, Labelled, absolute_slices, digest_of
from vit_jax.data.sources.captions import INSIDE, Captions, listed, usual
from vit_jax.data.sources.partition import options
from vit_jax.data.sources.record_ranges import RecordRanges, Shard
from vit_jax.errors import DataError, UserError, shown, some, unknown
from vit_jax.storage import files, foreign, remote
from vit_jax.storage.files import cache_home

# Ends of the intervals (low, high] of a distance.
_messages: Any = tf_example_pb2  # whose classes are made when it is imported
_PIXELS = (0.0, 8.0, 8.5, 9.0, 9.5, 10.0, 100.0)
_METRES = (-100.0, 8.0, 20.0, 999.0)
FEATURES, INFO = "features.json", "dataset_info.json"
_CLASSES = ("pythonClassName", "python_class_name", "type")
_OF_TARGET = ("mask", "objects", "depth", "ignore", "zero", "ids", "scale")
_KINDS = {"image": tfds.features.Image, "class label": tfds.features.ClassLabel}


class Derived(NamedTuple):
    """A label computed from the features of an example: a class id, and what the ids mean."""

    class_names: tuple[str, ...]
    of: Callable[[Mapping[str, Any]], int]


def interval(value: float, ends: Sequence[float]) -> int:
    """Return the last interval that begins below a value; -1 where none does."""
    return int(np.searchsorted(np.asarray(ends, np.float32), np.float32(value), side="left")) - 1


def _count_objects(example: Mapping[str, Any]) -> int:
    return len(example["objects"]["size"]) - 3


def _nearest_object(example: Mapping[str, Any]) -> int:
    return interval(float(np.min(np.asarray(example["objects"]["pixel_coords"])[:, 2])), _PIXELS)


def _nearest_vehicle(example: Mapping[str, Any]) -> int:
    """Class the z of the nearest car, van or truck; 1,000 metres where there is none."""
    kinds = np.asarray(example["objects"]["type"])
    away = np.asarray(example["objects"]["location"]).reshape(-1, 3)[kinds < 3, 2]
    return interval(float(np.min(away, initial=1000.0)), _METRES)


def _grouped(example: Mapping[str, Any], *, feature: str, size: float) -> int:
    return int(int(example[feature]) // size)


def _groups(feature: str, count: int, num_classes: int) -> Derived:
    of = functools.partial(_grouped, feature=feature, size=count / num_classes)
    return Derived(tuple(map(str, range(num_classes))), of)


def _ranges(ends: Sequence[float]) -> tuple[str, ...]:
    return tuple(f"{low:g} to {high:g}" for low, high in itertools.pairwise(ends))


# By dataset and label.
DERIVED: Mapping[str, Mapping[str, Derived]] = {
    "clevr": {
        "count": Derived(tuple(f"{n} objects" for n in range(3, 11)), _count_objects),
        "distance": Derived(_ranges(_PIXELS), _nearest_object),
    },
    "dsprites": {
        "location": _groups("label_x_position", 32, 16),
        "orientation": _groups("label_orientation", 40, 16),
    },
    "kitti": {
        "distance": Derived((*_ranges(_METRES), "no vehicle"), _nearest_vehicle),
    },
}


def brighten(image: bytes) -> bytes:
    """Turn the white of dsprites' images, which is 1, into 255."""
    return cv2.imencode(".png", decode(image, 1) * np.uint8(255))[1].tobytes()


def check_counts(directory: Path, splits: Iterable[Any]) -> None:
    """Raise ValueError: a file of some splits holds another number of records than these tell."""
    told = {
        file: length
        for split in splits
        for file, length in zip(sorted(split.filenames), split.shard_lengths, strict=True)
    }

    def count(file: str) -> int:
        found = os.stat(directory / file)
        return _count(str(directory / file), found.st_size, found.st_mtime_ns)

    with ThreadPoolExecutor(16) as pool:
        for file, number in zip(told, pool.map(count, told), strict=True):
            if number != told[file]:
                holds = f"{number:,} records" if number else "no records that can be read"
                raise ValueError(f"{file} holds {holds}, not {told[file]:,}")


@functools.lru_cache(1 << 14)
def _count(path: str, _size: int, _time: int) -> int:
    """Return the number of a file's records by its footer, which also tells that it is whole."""
    try:
        reader = array_record_module.ArrayRecordReader(path)
        count = reader.num_records() if reader.ok() else 0
        reader.close()  # raises what is wrong with a file that is cut
    except (RuntimeError, ValueError):
        return 0
    return count


def read(path: Path) -> dict[str, Any]:
    """Read a file of metadata; raises ValueError: it holds no object of JSON; OSError."""
    try:
        found = json.loads(foreign.read(path))
    except RecursionError:
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} holds no object of JSON")
    return found


def check(directory: Path) -> None:
    """Raise UserError for metadata that name another class than TFDS's own, or a foreign path.

    Raises ValueError: they are no JSON; OSError.
    """
    path = directory / FEATURES
    for key, value in _pairs(read(path)):
        if key in _CLASSES and isinstance(value, str) and value not in _classes():
            raise UserError(
                f"{path} names the class {shown(value[:200])}, whose module would run; features of "
                "TFDS's own are read, tensorflow_datasets.core.features"
            )
        if isinstance(value, dict):  # a feature's name is a part of the names of its files
            foreign.checked(key, str(path))
    path = directory / INFO
    info = read(path)
    splits = info.get("splits", [])
    if not isinstance(splits, list) or not all(isinstance(split, dict) for split in splits):
        raise ValueError(f"{path.name} has no list of splits")
    kinds = ("name", "configName", "config_name", "fileFormat", "file_format")
    names = [info.get(key, "") for key in kinds]
    for split in splits:
        names += [split.get(key, "") for key in ("name", "filepathTemplate", "filepath_template")]
    for name in names:
        if name and "/" in foreign.checked(name, str(path)):
            raise UserError(f"{path}: the name {shown(name[:200])} is of another folder's file")
    module = str(info.get("moduleName", info.get("module_name", "")))
    if not re.fullmatch(r"[\w.]*", module):
        raise UserError(f"{path} names the module {shown(module[:200])}; prepare it again")


def _pairs(tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key and value in JSON, in the texts in it that are JSON themselves, too."""
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, str) and node.lstrip()[:1] in ("{", "["):
            try:
                node = json.loads(node)
            except (ValueError, RecursionError):
                continue
        if isinstance(node, dict):
            yield from node.items()
            left += node.values()
        elif isinstance(node, list):
            left += node


@functools.cache
def _classes() -> frozenset[str]:
    """Return the names of TFDS's own features, by which it knows those that it has imported."""
    for name in tfds.features.__all__:
        getattr(tfds.features, name)
    known = tfds.features.FeatureConnector._registered_features
    return frozenset(name for name in known if name.startswith("tensorflow_datasets.core."))


class TfdsSource(Labelled):
    """One split of a prepared TFDS dataset; see `Source`."""

    labels: np.ndarray | None = None  # they lie beside the images, in the records
    _plain_label = ""  # the feature, where an example is an image and this class label alone

    def __init__(
        self,
        directory: Path,
        split: str,
        label: str = "",
        image: str = "",
        shards: Mapping[str, remote.FileInfo] | None = None,
        captions: str = "",
        wanted: Captions = Captions.UNREAD,
        target: str = "",
        **of_target: str,
    ) -> None:
        """Open a split.

        Args:
            directory: where the metadata are.
            split: as `DataConfig.train_split`.
            label: a feature's name or one of `DERIVED`; "" is the only label.
            image: a feature's name; "" is the only image.
            shards: the files by name where they are in a bucket.
            captions: a feature's name; "" is one of a usual name.
            wanted: what is done with captions. Where there are some, there need be no label. Which
                records have none is found when they are read.
            target: the `TargetKind` that is wanted; "" is none, or that of a feature in
                `of_target`, options of `dense.features`. With one, no label is read.
        """
        self._directory, self.is_remote = directory, shards is not None
        check(directory)
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
            check_counts(directory, [info.splits[key] for key, *_ in slices])
        self._targets: Any = None
        if target or of_target:
            from vit_jax.data.sources.dense import features  # late: few runs have targets

            self._targets = features.find(info, of_target, target, where)
        beside = self._targets.key if self._targets else ""
        if self._targets and not image and "image" in info.features:  # masks are images as well
            image = "image"
        self._image = _feature_key(info, where, "image", image, beside=beside)
        self._is_binary = info.name == "dsprites"
        derived = DERIVED.get(info.name, {})
        self._captions = "" if wanted is Captions.UNREAD else captions_key(info, where, captions)
        self.has_captions = bool(self._captions)
        if self._targets:
            self.class_names, self._label_of = self._targets.classes, _no_label
            self.target_kind = self._targets.kind
        elif label in derived:
            self.class_names, self._label_of = derived[label]
        elif self.has_captions and not label and not _has_label(info):
            self.class_names, self._label_of = (), _no_label
        else:
            key = _feature_key(info, where, "class label", label, tuple(derived))
            feature, self._label_of = info.features[key], operator.itemgetter(key)
            self.multi_label = isinstance(feature, tfds.features.Sequence)
            plain = not (self.multi_label or self._is_binary or self.has_captions)
            self._plain_label = key if plain else ""
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
        """Return an example's encoded image, its label and, of a source with these, its captions.

        TFDS marks a missing label by -1, for users who need none.

        Raises DataError: a record that is cut or damaged, or a label outside the classes.
        """
        if self._plain_label and (plain := self._plain(index)) is not None:
            return plain
        try:
            example = self._records[index]
            image = bytes(example[self._image])
            image = brighten(image) if self._is_binary else image
            label = np.asarray(self._label_of(example), np.int64)
            texts: Example = {}
            if self.has_captions:
                texts["captions"] = listed(example[self._captions]).texts
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
            return {"image": image, "label": int(label), **texts}
        hot = np.zeros(self.num_classes, np.uint8)
        hot[label] = 1
        return {"image": image, "label": hot, **texts}

    def _plain(self, index: int) -> Example | None:
        """Return what `read` does, for a quarter of TFDS's time; None where anything is amiss.

        Then TFDS's own reading says what.
        """
        try:
            record = self._records.data_source[index]
            fields = _messages.Example.FromString(record).features.feature
            (image,) = fields[self._image].bytes_list.value
            (label,) = fields[self._plain_label].int64_list.value
        except Exception:  # as of `read`
            return None
        fits = -1 <= label < self.num_classes
        return {"image": image, "label": label} if fits else None

    def target(self, index: int) -> Any:
        """Return an example's `PixelTarget`.

        Raises DataError as `read` does, or for one of another size.
        """
        try:
            example = self._records[index]
            return self._targets.of(
                example[self._targets.key], bytes(example[self._image]), self.example_id(index)
            )
        except UserError:
            raise
        except Exception as error:  # as of `read`
            raise DataError(f"{self.example_id(index)}: {error}") from error

    def example_id(self, index: int) -> str:
        return f"{self.name} record {index}"

    def digest(self) -> str:
        """Digest the names and sizes of the split's shards."""
        return digest_of(f"{name} {size}".encode() for name, size in self._sizes.items())


def data_root(data_dir: str) -> str:
    """Return where TFDS datasets lie: `data_dir`, $TFDS_DATA_DIR or ~/tensorflow_datasets."""
    chosen = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return os.path.expanduser(chosen).rstrip("/") or "/"


def open_tfds(
    name: str, data_dir: str, split: str, captions: Captions = Captions.UNREAD, target: str = ""
) -> TfdsSource:
    """Open one split of a TFDS dataset, `name[/config][:version][?label=...]`, in ArrayRecord.

    Raises UserError: not prepared, without random access, damaged, without images or class labels,
    no such split, or a bucket that cannot be read.
    """
    if not name:
        raise UserError(
            "data.name is empty; give 'digits', a prepared TFDS dataset or folder:DIR",
            field="data.name",
        )
    root = data_root(data_dir)
    name, chosen = options(name)
    if surplus := chosen.keys() - {"label", "image", "captions", *_OF_TARGET}:
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
        how: dict[str, Any] = {"shards": shards, "wanted": captions, "target": target}
        return TfdsSource(directory, split, **chosen, **how)
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
    # After a change the copy has another place, so that versions deleted in the bucket are gone.
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
        stored = read(path / INFO).get("fileFormat", "tfrecord")
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    if stored != "array_record":
        raise UserError(
            f"{path} is stored as {stored}, which has no random access; write it again with "
            "`tfds build --file_format=array_record` (or `tfds convert_format`)"
        )
    return path


def _feature_key(
    info: Any,
    where: str,
    kind: str,
    wanted: str = "",
    derived: tuple[str, ...] = (),
    beside: str = "",
) -> str:
    """Find the image or the label by its type; of several, `wanted` or `supervised_keys`'.

    `beside` is a feature of images that is none of these, a mask.
    """
    found = [key for key, f in info.features.items() if isinstance(_item(f, kind), _KINDS[kind])]
    found = [key for key in found if key != beside or key == wanted]
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


def captions_key(info: Any, where: str, wanted: str) -> str:
    """Find the feature of captions: `wanted`, or one of a usual name; "" for none.

    Raises UserError: what is wanted is no text.
    """
    found = [key for key, feature in info.features.items() if _holds_text(feature)]
    if wanted and wanted not in found:
        raise unknown(f"feature of texts in {where}", wanted, found)
    return wanted or usual(found)


def _holds_text(feature: Any) -> bool:
    """Return whether a feature is text, a sequence of it, or one of dicts with a text."""
    if isinstance(feature, tfds.features.Sequence):
        return _holds_text(feature.feature)
    if isinstance(feature, tfds.features.FeaturesDict):
        return any(name in INSIDE and _holds_text(each) for name, each in feature.items())
    return isinstance(feature, tfds.features.Text)


def _has_label(info: Any) -> bool:
    """Return whether a dataset has one class label, or says which of several is its own."""
    kind = "class label"
    found = [key for key, f in info.features.items() if isinstance(_item(f, kind), _KINDS[kind])]
    return len(found) == 1 or any(key in found for key in info.supervised_keys or ())


def _no_label(example: Mapping[str, Any]) -> int:
    del example
    return -1


def _item(feature: Any, kind: str) -> Any:
    """Return what a sequence of labels is made of."""
    several = kind == "class label" and isinstance(feature, tfds.features.Sequence)
    return feature.feature if several else feature
