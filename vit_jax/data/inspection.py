# SPDX-License-Identifier: Apache-2.0
"""Decodes every image of a dataset, to find those that cannot be used and copies."""

import hashlib
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import cv2

from vit_jax.data.account import Account, dataset_of
from vit_jax.data.images.decode import decode
from vit_jax.data.sources.base import Source, account_of
from vit_jax.data.sources.folders import FolderSource
from vit_jax.data.sources.look import copies_told
from vit_jax.process import waiting
from vit_jax.storage import remote

_CHUNK = 1024  # examples decoded at once


class Fault(NamedTuple):
    """An example that cannot be used, or a file that is left out."""

    name: str
    split: str  # "" for a file that is left out of the dataset
    why: str


class Inspected(NamedTuple):
    """The result of an inspection.

    Attributes:
        account: of the dataset.
        left_out: files that are no examples, of sources that list them.
        broken: examples that cannot be read or decoded.
        copies: notes on images that occur more than once.
    """

    account: Account
    left_out: list[Fault]
    broken: list[Fault]
    copies: list[str]


def inspect(sources: Mapping[str, Source], num_threads: int) -> Inspected:
    """Read and decode every example of some splits, in parallel.

    Args:
        sources: of one dataset, by split.
        num_threads: examples decoded at the same time.

    Raises RemoteError: a bucket does not answer.
    """
    first = next(iter(sources.values()))
    used = {name: len(source) for name, source in sources.items()}
    count = sum(used.values())
    broken: list[Fault] = []
    contents: dict[str, list[int]] = defaultdict(list)
    names, splits, classes = [], [], []
    with (
        waiting.counted(f"decoding the images of {dataset_of(first.name)}", count) as done,
        ThreadPoolExecutor(num_threads) as pool,
    ):
        for split, source in sources.items():
            for at in range(0, len(source), _CHUNK):
                chunk = range(at, min(at + _CHUNK, len(source)))
                for index, (why, key, label) in zip(
                    chunk, pool.map(lambda i, s=source: _decoded(s, i), chunk), strict=True
                ):
                    if why:
                        broken.append(Fault(source.example_id(index), split, why))
                    elif not isinstance(
                        source, FolderSource
                    ):  # a FolderSource's account lists its copies
                        contents[key].append(len(names))
                        names.append(source.example_id(index))
                        splits.append(split)
                        classes.append(label)
                done(len(chunk))
    groups = [members for members in contents.values() if len(members) > 1]
    account = account_of(first) or Account(
        unit="examples", num_classes=first.num_classes, used=used
    )
    left_out = [Fault(path, "", why) for why, path in getattr(first, "left_out", ())]
    return Inspected(account, left_out, broken, copies_told(groups, names, splits, classes))


def _decoded(source: Source, index: int) -> tuple[str, str, str]:
    """Return why an example cannot be used or "", a digest of its content, and its class."""
    try:
        example = source.read(index)
        image = example["image"]
        decode(image, 3)
    except remote.MissingError as error:
        return str(error), "", ""
    except remote.RemoteError:
        raise
    except (ValueError, OSError, cv2.error) as error:
        why = getattr(error, "strerror", None) or getattr(error, "err", None) or str(error)
        return " ".join(str(why).split())[:200] or type(error).__name__, "", ""
    label = example.get("label")
    name = source.class_names[label] if isinstance(label, int) and label >= 0 else ""
    return "", f"{len(image)} {hashlib.blake2b(image, digest_size=16).hexdigest()}", name
