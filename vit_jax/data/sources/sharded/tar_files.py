# SPDX-License-Identifier: Apache-2.0
"""Images in tar files as WebDataset has them: `tar:PATTERN`, members KEY.jpg and KEY.cls or .json.

https://github.com/webdataset/webdataset: a key is a member's path up to the first dot of its name.
Where nothing else labels the images, class folders inside the tar do, [SPLIT/]CLASS/IMAGE.
"""

import collections
import itertools
import types
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from vit_jax.data import several
from vit_jax.data.account import Account, left_out
from vit_jax.data.images.header import MAX_BYTES
from vit_jax.data.names import (
    KNOWN_SPLITS,
    alike,
    look_alike,
    one_spelling,
    split_notes,
    without_label,
)
from vit_jax.data.sources import captions as captions_lib
from vit_jax.data.sources.base import Example
from vit_jax.data.sources.captions import USUAL, Captions
from vit_jax.data.sources.folders import BESIDE, OUTSIDE, splits_in
from vit_jax.data.sources.partition import draw_of
from vit_jax.data.sources.sharded import shards, tar_index
from vit_jax.data.sources.sharded.tar_index import BLOCK
from vit_jax.errors import DataError, UserError, shown
from vit_jax.storage import remote


class Folders(NamedTuple):
    """What the folders of all images say.

    Attributes:
        classes: their names, by class id.
        used: which images these are of.
        ids: the class of each of these, -1 for none.
        splits: of each of these; [] where the folders are no splits.
        left_out: (reason, name) of the other images.
        notes: what was decided.
    """

    classes: tuple[str, ...]
    used: Bool[np.ndarray, " N"]
    ids: Int[np.ndarray, " M"]
    splits: list[str]
    left_out: list[tuple[str, str]]
    notes: list[str]


def read(names: np.ndarray) -> Folders | None:
    """Return the class folders of the images with these names in their tars; None: there are none.

    Below the folders that all have in common they mean what a folder's do (`splits_in`), but that
    splits are those called so, and that one folder of all images is no class. None also where more
    images lie beside class folders than in them.
    """
    texts = [name.decode(errors="backslashreplace") for name in names.tolist()]
    folders = [[part for part in text.split("/")[:-1] if part.strip(". ")] for text in texts]
    depth = 0
    while len(tops := {parts[depth] for parts in folders if len(parts) > depth}) == 1:
        if alike(min(tops)) in KNOWN_SPLITS:
            break
        depth += 1
    splits, _ = splits_in("/".join([*parts[depth:], "image"]) for parts in folders)
    if not all(alike(split) in KNOWN_SPLITS for split in splits):
        splits = {}
    labelled = depth + bool(splits)
    used: list[tuple[str, str]] = []  # split and class
    left_out: list[tuple[str, str]] = []
    is_used = np.ones(len(texts), bool)
    for i, (text, parts) in enumerate(zip(texts, folders, strict=True)):
        split = parts[depth] if splits and len(parts) > depth else ""
        if splits and split not in splits:
            left_out.append((OUTSIDE, text))
        elif splits.get(split, True) and len(parts) <= labelled:
            left_out.append((BESIDE, text))
        else:
            used.append((split, one_spelling(parts[labelled]) if splits.get(split, True) else ""))
            continue
        is_used[i] = False
    counts = collections.Counter(label for _, label in used if label)
    if len(left_out) > len(used) or len(counts) < 1 + (not splits):
        return None
    place = {label: k for k, label in enumerate(sorted(counts))} | {"": -1}
    layout = "SPLIT/CLASS" if splits else "CLASS"
    said = f"no image has a label of its own, so it is that of its folder, {layout}, in the tar"
    return Folders(
        tuple(sorted(counts)),
        is_used,
        np.array([place[label] for _, label in used], np.int64),
        [split for split, _ in used] if splits else [],
        left_out,
        [said, *look_alike(counts), *without_label(sum(not x for _, x in used), len(used))],
    )


class TarSource(shards.ShardSource):
    """Examples of one split of tar files; see `Source`."""

    def __init__(
        self, *source: Any, shard: np.ndarray, entries: tar_index.Entries, caption: str = ""
    ) -> None:
        """Take what `ShardSource` does, the shard and the entry of every example, and the field
        of captions that was chosen.
        """
        super().__init__(*source)
        self._shard, self._entries, self._caption = shard.astype(np.int32), entries, caption
        self.has_captions = entries.captions.dtype == tar_index.CAPTIONS

    def read(self, index: int) -> Example:
        """Return an example's encoded image and its class id, -1 where it has none.

        Raises DataError: the header in front of the image is another than when the shard was
        indexed, or the shard is shorter.
        """
        start, size = int(self._places[index]), int(self._entries.sizes[index])
        if size > MAX_BYTES:
            raise DataError(f"{self.example_id(index)}: more than {MAX_BYTES >> 20} MiB")
        image = self._member(index, start, size, int(self._entries.crcs[index]))
        texts = {"captions": self.captions(index)} if self.has_captions else {}
        return {"image": image, **self._target(index), **texts}

    def captions(self, index: int) -> tuple[str, ...]:
        """Return an example's captions; raises DataError as `read`."""
        found = self._entries.captions[index]
        if not found["count"]:
            return ()
        start, size, crc = (int(found[name]) for name in ("start", "size", "crc"))
        content = self._member(index, start, size, crc)
        return captions_lib.in_member(content, self._caption, is_json=bool(found["is_json"])).texts

    def _member(self, index: int, start: int, size: int, crc: int) -> bytes:
        path = self._files[self._shard[index]].path
        # A member that grows, shrinks or moves has another header here, or none. A digest of the
        # images would tell more, but to make it they would all be read.
        data = remote.read_range(path, start - BLOCK, start + size)
        if len(data) < BLOCK + size or zlib.crc32(data[:BLOCK]) != crc:
            was = "is shorter" if len(data) < BLOCK + size else "has another header"
            raise DataError(f"{self.example_id(index)}: the file {was} than when it was indexed")
        return data[BLOCK:]

    def example_id(self, index: int) -> str:
        name = self._entries.names[index].decode(errors="backslashreplace")
        return f"{shown(self._files[self._shard[index]].path)}: {shown(name)}"


def open_tar(name: str, split: str, captions: Captions = Captions.UNREAD) -> TarSource:
    """Open one split of tar files, "PATTERN?label=FIELD&image=SUFFIX", with TFDS-style slices.

    Splits are told by the names of the files, else drawn by `partition`. Labels are the content of
    KEY.cls or of "label", "cls", "class" or "class_id" in KEY.json: whole numbers are ids, and
    other words sorted classes. Several lines in a KEY.cls, or a list in a KEY.json, are several
    labels of an image, unless "?labels=one" says otherwise. Where no image has a label, it is the
    class folder that it lies in, if there are such. classnames.txt beside the shards names the
    classes.

    Raises UserError: no such file or split, or what `tar_index.index` raises.
    """
    where, found, chosen = shards.find(name, "tar")
    return open_shards(where, found.files, split, chosen, notes=found.notes, wanted=captions)


def open_shards(
    where: str,
    files: Sequence[remote.FileInfo],
    split: str,
    chosen: dict[str, str],
    splits: Sequence[str] = (),
    *,
    told: Mapping[str, int] = types.MappingProxyType({}),
    notes: Sequence[str] = (),
    wanted: Captions = Captions.UNREAD,
) -> TarSource:
    """Open one split of some tar files; see `open_tar`.

    Args:
        where: the dataset in messages.
        files: the shards, in the order of their examples.
        split: as `DataConfig.train_split`.
        chosen: the options of its reference.
        splits: of each file, where its name does not tell.
        told: examples of each split, where a card tells them.
        notes: of the files, for the account.
        wanted: what is done with captions.

    Raises UserError: no such split, no captions that are needed; DataError: a shard, a label, or
    another number than `told`.
    """
    splits = splits or shards.splits_of(files)
    caption = None if wanted is Captions.UNREAD else chosen.get("captions", "")
    fields = tar_index.Fields(chosen.get("image", "").lower(), chosen.get("label", ""), caption)
    draw, kind = draw_of(chosen), several.kind_of(chosen, where)
    what, of_image = "", None
    scanned = tar_index.scan(files, fields, agree=draw.rules != 1)
    found, left = zip(*map(tar_index.split_off, scanned), strict=True)
    counts = [len(each.starts) for each in found]
    entries, shard = tar_index.joined(found), np.repeat(np.arange(len(files)), counts)
    captioned = caption is not None and bool(entries.captions["count"].any())
    if not captioned:
        if wanted is Captions.NEEDED or caption:
            raise _no_captions(where, caption or "", files[0])
        entries = entries._replace(captions=np.zeros(len(shard), "V1"))  # as if it was not asked
    is_labelled = (entries.labels != b"").any()
    if fields.label not in ("", tar_index.NO_LABEL) and not is_labelled:
        lacks = f"no image has a label KEY.{fields.label} or {fields.label!r} in KEY.json"
        usual = ", ".join(tar_index.LABELS)
        raise UserError(f"{where}: {lacks}; without ?label={fields.label} it is one of {usual}")

    def tell(index: int) -> str:
        text = entries.names[index].decode(errors="backslashreplace")
        return f"{shards.base_name(files[shard[index]].path)}/{text}"

    def keys() -> list[str]:
        return [tell(index) for index in range(len(shard))]

    needed = wanted is Captions.NEEDED  # which need no labels: folders may be of anything
    by_folders = not is_labelled and not fields.label and draw.rules != 1 and not needed
    folders = read(entries.names) if by_folders else None
    if folders:
        classes, labels, notes = folders.classes, folders.ids, [*notes, *folders.notes]
        entries = tar_index.Entries(*(column[folders.used] for column in entries))
        shard = shard[folders.used]
        counts, left = np.bincount(shard, minlength=len(files)).tolist(), [*left, folders.left_out]
        if folders.splits and not any(splits):
            splits, counts = folders.splits, [1] * len(shard)
    elif kind is several.HowMany.SEVERAL or (
        kind is several.HowMany.AUTO and any(b"\n" in each for each in entries.labels.tolist())
    ):
        found_labels = _several(entries.labels, tell)
        names = shards.class_names_beside(files)
        of_image = shards.several_labels(found_labels, names, tell)
        classes, labels, what = of_image.classes, of_image.labels.first(), of_image.what
        notes = [*notes, *of_image.notes]
    else:
        names = shards.class_names_beside(files)
        classes, labels = shards.class_ids(entries.labels, names, tell)
        if classes or not needed:
            said = shards.label_notes(entries.labels, labels, classes, named=bool(names))
            notes = [*notes, *said]
    members = shards.members_of(splits, counts, keys, labels, draw, where)
    notes = [*notes, *split_notes(members)]
    notes += shards.compare(told, shards.sizes(members), where)
    if needed:
        has = entries.captions["count"] > 0
        members, without = captions_lib.leave_out(members, has, tell)
        left = [*left, without]
        notes += captions_lib.notes(int(entries.captions["broken"].sum()))
    title, rows = shards.choose(split, members, draw, where)
    used, local = np.unique(shard[rows], return_inverse=True)
    source = TarSource(
        title,
        classes,
        [files[i] for i in used],
        labels[rows] if of_image is None else of_image.labels.take(rows),
        entries.starts[rows],
        shard=local,
        entries=tar_index.Entries(*(column[rows] for column in entries)),
        caption=caption or "",
    )
    source.account = Account(
        unit="members",
        num_classes=len(classes),
        used=shards.sizes(members),
        left_out=left_out(itertools.chain(*left)),
        notes=tuple(notes),
        what=what,
    )
    return source


def _several(labels: np.ndarray, tell: Callable[[int], str]) -> list[str]:
    """Return the labels of each image as `several.of_list` writes them."""
    texts = []
    for index, content in enumerate(labels.tolist()):
        try:
            texts.append(several.of_list(content.splitlines()))
        except ValueError as error:
            raise DataError(f"{tell(index)}: {error}") from None
    return texts


def _no_captions(where: str, field: str, first: remote.FileInfo) -> UserError:
    """Return the error of tars without captions, with what the `first` has instead."""
    suffix, keys = field or "txt", repr(field) if field else ", ".join(map(repr, USUAL))
    what = f"caption KEY.{suffix}, nor in KEY.json by {keys}"
    how = "choose one by the end of the name: ?captions=FIELD"
    return captions_lib.lacking(where, what, tar_index.parts(first), how)
