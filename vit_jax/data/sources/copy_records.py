# SPDX-License-Identifier: Apache-2.0
"""Any source written once as a TFDS dataset in ArrayRecord, without TensorFlow.

Encoded images stay the bytes that they are, in the source's order, so that batches stay what they
were. Shards are written aside, several at once; the dataset appears when all are there. A process
that was killed goes on at the first shard that is missing or differs from its checksum.
"""

import collections
import concurrent.futures
import contextlib
import fcntl
import functools
import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from vit_jax.data.sources.base import Example, Source, has_captions, short_name
from vit_jax.errors import DataError, UserError
from vit_jax.storage import files, foreign

VERSION = "1.0.0"
SUMS = "SHA256SUMS"  # as `sha256sum --check` reads it
_PLAN = "plan.json"
_SHARD_BYTES = 256 << 20
_SAMPLES = 16  # examples by which the size of all is guessed
_COMMENT = "Written by `vit_jax prepare` from {}: encoded images and labels as they are there."


class _Shard(NamedTuple):
    split: str
    name: str
    start: int
    stop: int


def write(
    folder: Path, sources: dict[str, Source], num_threads: int, say: Callable[[str], None]
) -> Path:
    """Write sources as the splits of the dataset `folder.name`; returns its directory.

    Args:
        folder: what is made, with the dataset in the folder `VERSION` in it.
        sources: by the names of their splits, all of the same classes.
        num_threads: shards written at once.
        say: is told what has been done.

    Raises UserError: no room, no right to write, an unfinished copy of other data, a class name
    that TFDS would change; DataError: an example that cannot be read.
    """
    _check_names(next(iter(sources.values())).class_names)
    target, unfinished = folder / VERSION, folder / f".{VERSION}.unfinished"
    shards = [shard for name, source in sources.items() for shard in _plan(folder, name, source)]
    facts = [
        [name, source.name, source.digest(), source.class_names]
        + (["with captions"] if has_captions(source) else [])
        for name, source in sources.items()
    ]
    plan = json.dumps({"sources": facts, "shards": shards}, indent=1) + "\n"
    with files.refused(f"cannot write {unfinished}"):
        unfinished.mkdir(parents=True, exist_ok=True)
        with (unfinished / _PLAN).open("a+") as stream, _locked(stream):
            stream.seek(0)
            if (before := stream.read()) != plan and before:
                raise UserError(f"{unfinished} is an unfinished copy of other data; delete it")
            stream.truncate(0)
            stream.write(plan)
            stream.flush()
            _finish(unfinished, sources, shards, num_threads, say)
            _describe(unfinished, folder.name, sources, shards)
            unfinished.rename(target)
            (target / _PLAN).unlink()
    return target


def _check_names(names: Sequence[str]) -> None:
    times = collections.Counter(names)
    for name in names:  # TFDS keeps them as the lines of a text, without spaces and empty ones
        if times[name] > 1 or name.strip().splitlines() != [name]:
            rule = "each must be another, one line that neither begins nor ends with a space"
            raise UserError(f"TFDS does not keep the class name {name!r}: {rule}")


@contextlib.contextmanager
def _locked(stream: IO[str]) -> Iterator[None]:
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise OSError(None, "another process is writing it") from None
    yield


def _finish(
    folder: Path,
    sources: dict[str, Source],
    shards: Sequence[_Shard],
    num_threads: int,
    say: Callable[[str], None],
) -> None:
    """Write the shards that are missing or differ from their checksums."""
    for left in folder.glob(".*.tmp"):  # by a process that was killed
        left.unlink()
    sums = {name: digest for name, digest in _sums(folder) if _digest(folder / name) == digest}
    missing = [shard for shard in shards if shard.name not in sums]
    if len(missing) < len(shards):
        say(f"{len(shards) - len(missing)} of {len(shards)} shards are there already")
    for shard, digest in _written(folder, sources, missing, num_threads):
        sums[shard.name] = digest
        lines = [f"{sums[each.name]}  {each.name}\n" for each in shards if each.name in sums]
        files.write(folder / SUMS, "".join(lines))
        say(f"{shard.name}: {shard.stop - shard.start:,} examples")


def compare(directory: Path) -> int:
    """Compare the shards of a dataset with their checksums; returns how many there are.

    Raises DataError: one differs or is gone; UserError: there are no checksums.
    """
    with files.refused(f"cannot read {directory}"):
        sums = list(_sums(directory))
    if not sums:
        raise UserError(f"{directory} has no {SUMS}, which `prepare --to=arrayrecord` writes")
    for name, digest in sums:
        if _digest(directory / name) != digest:
            what = f"{directory / name} is gone, or not what was written"
            raise DataError(f"{what}; move {directory} away and prepare it again")
    return len(sums)


def _plan(folder: Path, split: str, source: Source) -> list[_Shard]:
    """Divide a split into shards of equal numbers; the same for the same source."""
    chosen = np.unique(np.linspace(0, len(source) - 1, _SAMPLES).astype(int)).tolist()
    size = np.mean([len(_read(source, index)["image"]) for index in chosen]) * len(source)
    count = min(max(1, round(float(size) / _SHARD_BYTES)), len(source))
    ends = [len(source) * i // count for i in range(count + 1)]
    return [
        _Shard(split, f"{folder.name}-{split}.array_record-{i:05}-of-{count:05}", *ends[i : i + 2])
        for i in range(count)
    ]


def _written(
    folder: Path, sources: dict[str, Source], shards: Sequence[_Shard], num_threads: int
) -> Iterator[tuple[_Shard, str]]:
    """Write shards and yield each with its checksum when it is on the disk."""
    stop = threading.Event()
    with concurrent.futures.ThreadPoolExecutor(num_threads) as pool:
        write = functools.partial(_write_shard, folder, stop=stop)
        futures = {pool.submit(write, shard, sources[shard.split]): shard for shard in shards}
        try:
            for future in concurrent.futures.as_completed(futures):
                yield futures[future], future.result()
        finally:  # an error or Ctrl-C
            stop.set()
            pool.shutdown(cancel_futures=True)


def _write_shard(folder: Path, shard: _Shard, source: Source, stop: threading.Event) -> str:
    from array_record.python import array_record_module  # pyright: ignore
    from tensorflow_datasets.core.example_serializer import ExampleSerializer

    serializer: Any = ExampleSerializer(_features(source).get_serialized_info())
    with files.replacing(folder / shard.name) as path:
        try:
            # What is JPEG or PNG does not shrink: uncompressed is written three times as fast.
            writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
            for index in range(shard.start, shard.stop):
                if stop.is_set():
                    raise concurrent.futures.CancelledError
                example = _read(source, index)
                label = example["label"]
                if source.multi_label:
                    label = np.flatnonzero(label).tolist()
                fields = {"image": example["image"], "label": label}
                if "captions" in example:
                    fields["captions"] = list(example["captions"])
                writer.write(serializer.serialize_example(fields))
            writer.close()
            count = array_record_module.ArrayRecordReader(str(path)).num_records()
        except RuntimeError as error:  # "write() failed: No space left on device; writing ..."
            why = str(error).partition(" failed: ")[2].partition(";")[0] or str(error)
            raise OSError(None, " ".join(why.split())) from error
        if count != shard.stop - shard.start:
            raise OSError(None, f"{shard.name} has {count} records after it was written")
        return _digest(path)


def _read(source: Source, index: int) -> Example:
    try:
        return source.read(index)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"{source.example_id(index)}: {why}") from error


def _features(source: Source) -> Any:
    import tensorflow_datasets as tfds

    label: Any = tfds.features.ClassLabel(names=list(source.class_names))
    if source.multi_label:
        label = tfds.features.Sequence(label)
    fields = {"image": tfds.features.Image(shape=(None, None, None)), "label": label}
    if has_captions(source):
        fields["captions"] = tfds.features.Sequence(tfds.features.Text())
    return tfds.features.FeaturesDict(fields)


def _describe(
    folder: Path, name: str, sources: dict[str, Source], shards: Sequence[_Shard]
) -> None:
    """Write dataset_info.json and features.json."""
    import tensorflow_datasets as tfds
    from etils import epath

    first = next(iter(sources.values()))
    template = tfds.core.ShardedFileTemplate(
        data_dir=epath.Path(folder), dataset_name=name, filetype_suffix="array_record"
    )
    splits = []
    for split in sources:
        own = [shard for shard in shards if shard.split == split]
        size = sum((folder / shard.name).stat().st_size for shard in own)
        lengths = [shard.stop - shard.start for shard in own]
        about = template.replace(split=split)
        splits.append(
            tfds.core.SplitInfo(
                name=split, shard_lengths=lengths, num_bytes=size, filename_template=about
            )
        )
    with contextlib.redirect_stdout(None):
        tfds.folder_dataset.write_metadata(
            data_dir=folder,
            features=_features(first),
            split_infos=splits,
            version=VERSION,
            filename_template=template,
            check_data=False,
            description=_COMMENT.format(short_name(first.name)),
            supervised_keys=("image", "label"),
            disable_shuffling=True,
        )
    for path in folder.iterdir():
        files.sync(path)


def _sums(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and checksum of the files that SHA256SUMS lists."""
    path = folder / SUMS
    for line in foreign.read(path).decode().splitlines() if path.exists() else ():
        digest, _, name = line.partition("  ")
        yield foreign.checked(name, str(path)), digest


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file in hex; "" where there is none."""
    if not path.is_file():
        return ""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
