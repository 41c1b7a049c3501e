# SPDX-License-Identifier: Apache-2.0
"""Which images of a dataset are there more than once, by their content."""

import functools
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from vit_jax.data.sources.look import CHUNK, HEAD, threads_for
from vit_jax.data.sources.look_cache import Known, Seen
from vit_jax.process import waiting
from vit_jax.storage import remote


def same_content(paths: Sequence[str], seen: Sequence[Seen], name: str) -> list[list[int]]:
    """Group files of equal content, by their indices; those that are alone are left out.

    Only files of one size and one beginning are read, and only once: see `examine`.
    """
    alike: dict[str, list[int]] = defaultdict(list)
    for index, each in enumerate(seen):
        if not each.why and each.head:
            alike[each.key].append(index)
    groups = [members for members in alike.values() if len(members) > 1]
    short = [members for members in groups if seen[members[0]].size <= HEAD]
    longer = [index for members in groups if seen[members[0]].size > HEAD for index in members]
    if not longer:
        return short
    known = Known(f"{name}, contents")
    digest = functools.partial(_digest, kept=known.entries)
    by_content: dict[str, list[int]] = defaultdict(list)
    with (
        waiting.counted(f"comparing images of {name} that may be copies", len(longer)) as done,
        ThreadPoolExecutor(threads_for(paths[longer[0]])) as pool,
    ):
        for at in range(0, len(longer), CHUNK):
            chunk = longer[at : at + CHUNK]
            near = [paths[i] for i in chunk]
            found = list(pool.map(digest, near, [seen[i] for i in chunk]))
            known.add(near, found)
            for index, each in zip(chunk, found, strict=True):
                by_content[each.key if each.head else f"?{index}"].append(index)
            done(len(chunk))
    known.close([paths[i] for i in longer])
    return short + [members for members in by_content.values() if len(members) > 1]


def _digest(path: str, seen: Seen, kept: Mapping[str, Seen]) -> Seen:
    before = kept.get(path)
    if before and (before.size, before.stamp) == (seen.size, seen.stamp):
        return before
    try:
        if remote.is_remote(path):
            digest = hashlib.blake2b(remote.read(path), digest_size=16).hexdigest()
        else:
            with open(path, "rb") as file:
                digest = hashlib.file_digest(file, _blake).hexdigest()
    except (OSError, remote.MissingError, remote.ForbiddenError):
        return Seen(seen.size, "", "", "")
    return Seen(seen.size, seen.stamp, "", digest)


def _blake() -> Any:
    return hashlib.blake2b(digest_size=16)


def copies_told(
    groups: Iterable[Sequence[int]],
    names: Sequence[str],
    splits: Sequence[str],
    classes: Sequence[str],
) -> list[str]:
    """Say which images are there more than once: in two splits, in two classes, in one.

    Args:
        groups: of equal content, by indices into the others.
        names: of all images, as messages show them.
        splits: of all images; "" where splits are drawn, which keeps copies together.
        classes: of all images; "" for no label.
    """
    across: dict[tuple[str, ...], list[str]] = defaultdict(list)
    classed: list[str] = []
    twice: list[str] = []
    for members in groups:
        members = sorted(members, key=lambda i: names[i])
        first = [names[i] for i in members]
        of_split = {splits[i]: names[i] for i in reversed(members)}
        of_class = {classes[i]: names[i] for i in reversed(members) if classes[i]}
        if len(of_split) > 1:
            across[tuple(sorted(of_split))].append(" = ".join(sorted(of_split.values())))
        if len(of_class) > 1:
            classed.append(" = ".join(sorted(of_class.values())))
        if len({(splits[i], classes[i]) for i in members}) < len(members):
            twice.append(" = ".join(first[:2]))
    found = [
        f"{_images(pairs)} in {' and in '.join(where)} (by content), first: {min(pairs)}"
        for where, pairs in sorted(across.items())
    ]
    if classed:
        have = f"{len(classed):,} images have" if len(classed) > 1 else "1 image has"
        found.append(f"{have} two classes or more (by content), first: {min(classed)}")
    if twice:
        times = "there twice or more in a class" if any(classes) else "there twice or more"
        are = f"{len(twice):,} images are" if len(twice) > 1 else "1 image is"
        found.append(f"{are} {times} (by content), first: {min(twice)}")
    return found


def _images(pairs: Sequence[str]) -> str:
    return f"{len(pairs):,} images lie" if len(pairs) > 1 else "1 image lies"
