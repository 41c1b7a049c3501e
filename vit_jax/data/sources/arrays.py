# SPDX-License-Identifier: Apache-2.0
"""A look at files of bands before a run: which can be read, and which are unlike the others.

What a file says of its bands and their dtype is at its beginning, most often; the result is kept in
the user's cache, as `look` keeps that of pictures.
"""

import functools
import hashlib
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vit_jax.data.images import bands as bands_lib
from vit_jax.data.images.bands import BandFacts
from vit_jax.data.images.header import MAX_BYTES, read_file
from vit_jax.data.sources import look
from vit_jax.data.sources.listing import NO_IMAGE, Listing
from vit_jax.data.sources.look import Known, Seen
from vit_jax.errors import MACHINE, UserError, shown
from vit_jax.process import waiting
from vit_jax.storage import remote

NO_BANDS = "no file of bands"


def grouped(listing: Listing, bands: Sequence[str]) -> Listing:
    """Return a listing whose images are arrays; with named bands, the folders that hold the files.

    Files of NumPy's, which are no pictures, are images here, and JPEGs are none.
    """
    arrays = [path for why, path in listing.others if why == NO_IMAGE and _fits(path)]
    files = sorted([*filter(_fits, listing.images), *arrays])
    others = [pair for pair in listing.others if pair[1] not in {*arrays}]
    others += [(NO_BANDS, path) for path in listing.images if not _fits(path)]
    if not bands_lib.by_name(bands):
        return listing._replace(images=files, others=others)
    alone = [path for path in files if path.lower().endswith(".npz")]
    members = [path for path in files if "/" in path and path not in {*alone}]
    others += [("beside the folders of bands", path) for path in {*files} - {*alone, *members}]
    groups = list(dict.fromkeys(path.rpartition("/")[0] for path in members))
    folders = [path for path in listing.folders if path not in {*groups}]
    return listing._replace(images=sorted([*alone, *groups]), others=others, folders=folders)


def _fits(path: str) -> bool:
    return path.lower().endswith(bands_lib.SUFFIXES)


def read(path: str, bands: Sequence[str]) -> bytes:
    """Read an image's file, or of a folder those of its named bands, packed.

    Raises ValueError: a band without a file; OSError, MissingError, RemoteError.
    """
    if remote.is_remote(path):
        return remote.read(path)
    named = bands_lib.by_name(bands) and os.path.isdir(path)
    return bands_lib.packed_folder(path, bands) if named else read_file(path)


def check_place(path: str, bands: Sequence[str]) -> None:
    """Raise UserError for folders of bands in a bucket, of which nobody lists the files."""
    if bands_lib.by_name(bands) and remote.is_remote(path):
        where = f"{shown(path)} is in a bucket, and folders of bands are read from a disk"
        raise UserError(f"{where}; copy them, or write each image as one file (data.bands=all)")


def examine(paths: Sequence[str], name: str, bands: Sequence[str]) -> list[Seen]:
    """Look at images in parallel; those that are unlike most of the others have a reason why.

    Args:
        paths: of files or folders of bands on this machine, or addresses in a bucket.
        name: the dataset's, under which the cache stores the results.
        bands: as `DataConfig.bands`.

    Raises OSError: the machine is at fault; RemoteError: a bucket does not answer.
    """
    if not paths:
        return []
    known = Known(f"{name}, bands {','.join(bands)}")
    see = functools.partial(_see, bands=bands, kept=known.entries)
    with (
        waiting.counted(f"looking at the images of {name}", len(paths)) as done,
        ThreadPoolExecutor(look.threads_for(paths[0])) as pool,
    ):
        found: list[Seen] = []
        for at in range(0, len(paths), look.CHUNK):
            chunk = list(paths[at : at + look.CHUNK])
            found += pool.map(see, chunk)
            known.add(chunk, found[-len(chunk) :])
            done(len(chunk))
    known.close(paths)
    return unlike(found)


def unlike(found: Sequence[Seen]) -> list[Seen]:
    """Give a reason to those of other bands, or of another dtype, than most; ties go to the first.

    `Seen.head` begins with the number of bands and their dtype.
    """
    kinds = Counter(_facts(each) for each in found if not each.why)
    if len(kinds) < 2:
        return list(found)
    usual = kinds.most_common(1)[0][0]
    return [
        each
        if each.why or _facts(each) == usual
        else each._replace(why=f"of {_facts(each)}, where most are of {usual}")
        for each in found
    ]


def _facts(seen: Seen) -> BandFacts:
    count, dtype, _ = seen.head.split(" ", 2)
    return BandFacts(dtype, int(count))


def _see(path: str, bands: Sequence[str], kept: Mapping[str, Seen]) -> Seen:
    before = kept.get(path)
    try:
        if remote.is_remote(path):
            file = remote.info(path)
            if before and (before.size, before.stamp) == (file.size, file.version):
                return before
            return _judged(remote.read(path), bands, file.size, file.version)
        places = [path]
        if os.path.isdir(path):
            names = [name for name in os.listdir(path) if not name.startswith(".")]
            places = [os.path.join(path, each) for each in bands_lib.members_of(names, bands)]
        facts = [os.stat(each) for each in places]
        size, stamp = sum(x.st_size for x in facts), str(max(x.st_mtime_ns for x in facts))
        if before and (before.size, before.stamp) == (size, stamp):
            return before
        if max(x.st_size for x in facts) > MAX_BYTES:
            raise ValueError(f"a file of more than {MAX_BYTES >> 20} MiB")
        if len(places) > 1 or not path.lower().endswith((".tif", ".tiff")):
            return _judged(read(path, bands), bands, size, stamp)
        with open(path, "rb", buffering=0) as file:
            head = file.read(look.HEAD)
        try:
            return _judged(head, bands, size, stamp)
        except ValueError:  # a TIFF's tags may be at its end
            return _judged(read_file(path), bands, size, stamp)
    except remote.MissingError:
        return Seen(-1, "", "gone")
    except OSError as error:
        if error.errno in MACHINE:
            raise
        return Seen(-1, "", f"unreadable: {error.strerror}")
    except ValueError as error:
        return Seen(-1, "", str(error))


def _judged(data: bytes, bands: Sequence[str], size: int, stamp: str) -> Seen:
    facts = bands_lib.facts(data, bands)
    digest = hashlib.blake2b(data[: look.HEAD], digest_size=10).hexdigest()
    return Seen(size, stamp, "", f"{facts.count} {facts.dtype} {digest}")


def depth_of(kind: Any) -> int:
    """Return how many lists of numbers lie in one another."""
    import pyarrow.types as types

    depth = 0
    while types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        kind, depth = kind.value_type, depth + 1
    return depth if types.is_integer(kind) or types.is_floating(kind) else 0


def file_of(value: Any) -> Any:
    """Return lists of lists of numbers, a scalar of pyarrow's, as the bytes of an array.

    What is none of these is returned as it is.

    Raises ValueError: rows of several lengths, or none at all.
    """
    if (depth := depth_of(value.type)) < 2:
        return value.as_py()
    flat, shape = value.values, [len(value.values)]
    for _ in range(depth - 1):
        inside = flat.flatten()
        shape.append(len(inside) // max(len(flat), 1))
        flat = inside
    numbers = flat.to_numpy(zero_copy_only=False)
    if numbers.size != math.prod(shape):
        raise ValueError("lists of several lengths, which are no array")
    return bands_lib.as_file(numbers.reshape(shape))
