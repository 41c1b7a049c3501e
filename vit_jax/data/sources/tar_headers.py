# SPDX-License-Identifier: Apache-2.0
"""Headers of a tar file: ustar with GNU's long names and base-256 sizes, and POSIX.1-2001's (PAX).

Only headers are read, and the names that are too long for them.
"""

import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
_LONGEST = 1 << 20  # bytes of a long name or of a PAX header
_PACKED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")  # gzip, zstd, bzip2, xz
_LINKS = (b"1", b"2")
_FILES = (b"\0", b"0", b"7")


class Member(NamedTuple):
    """A file in a tar; `start` is where its content begins, right behind its own header."""

    name: bytes
    start: int
    size: int
    crc: int  # CRC-32 of its header: of name, size, time, owner
    is_link: bool


def members(read: Callable[[int, int], bytes], end: int) -> Iterator[Member]:
    """Yield the files and links of a tar, in their order.

    Blocks of zeros between members are passed over, so that tars one behind the other are read
    whole, which GNU tar does by --ignore-zeros.

    Args:
        read: returns the bytes from one offset to another.
        end: the size of the tar.

    Raises ValueError: it is cut, damaged or compressed, or a member is sparse.
    """
    at, finished = 0, False
    common: dict[bytes, bytes] = {}  # PAX records for all that follows
    own: dict[bytes, bytes] = {}  # those of the next member, GNU's long name among them
    while at < end:
        block = read(at, at + BLOCK)
        if len(block) == BLOCK and not any(block):
            at, finished = at + BLOCK, True
            continue
        kind, size = _kind_and_size(block, at)
        start, finished = at + BLOCK, False
        name = _name(block)
        records = {**common, **own}
        if kind not in b"LKxg":
            name = records.get(b"path", name)
            size = int(records.get(b"size", size))
            if kind == b"S" or any(key.startswith(b"GNU.sparse") for key in records):
                raise ValueError(f"{_shown(name)} is sparse, which is not read; write it plainly")
        at = start + -(-size // BLOCK) * BLOCK
        if size < 0 or start + size > end:
            needs = f"{_shown(name)} ends at byte {start + size:,}"
            raise ValueError(f"cut off: {needs}, and the file has {end:,}")
        if kind in b"LKxg":
            if size > _LONGEST:
                raise ValueError(f"a header of {size:,} bytes at byte {start - BLOCK:,}")
            content = read(start, start + size)
            if kind == b"L":
                own[b"path"] = content.rstrip(b"\0")
            elif kind != b"K":  # the name that a link points to
                (common if kind == b"g" else own).update(_records(content))
            continue
        own = {}
        if kind in _LINKS or (kind in _FILES and not name.endswith(b"/")):
            yield Member(name, start, size, zlib.crc32(block), kind in _LINKS)
    if not finished:
        raise ValueError("cut off: the block of zeros that ends a tar is missing")


def _kind_and_size(block: bytes, at: int) -> tuple[bytes, int]:
    """Return type and size; raises ValueError: this is no header."""
    if at == 0 and block.startswith(_PACKED):
        raise ValueError("compressed, which has no random access; decompress it once")
    if len(block) < BLOCK:
        raise ValueError(f"cut off in the header at byte {at:,}")
    try:
        size = _number(block[124:136])
        if 256 + sum(block[:148]) + sum(block[156:]) == _number(block[148:156]) and size >= 0:
            return block[156:157], size
    except ValueError:
        pass
    raise ValueError(f"damaged: no header of a tar at byte {at:,}")


def _number(field: bytes) -> int:
    """Read octal digits, or GNU's base 256 of numbers that these have no room for."""
    if field[0] & 0x80:
        return int.from_bytes(field[1:])
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _name(block: bytes) -> bytes:
    name, prefix = block[:100].partition(b"\0")[0], b""
    if block[257:263] == b"ustar\0":  # in GNU's own headers times stand there
        prefix = block[345:500].partition(b"\0")[0]
    return prefix + b"/" + name if prefix else name


def _records(content: bytes) -> dict[bytes, bytes]:
    """Read PAX records, b"LENGTH KEY=VALUE\\n"; raises ValueError: they are damaged."""
    found = {}
    while content.strip(b"\0"):
        length = int(content.partition(b" ")[0])
        record, content = content[:length], content[length:]
        key, equals, value = record.partition(b" ")[2].partition(b"=")
        if not equals or not record.endswith(b"\n"):
            raise ValueError("damaged: a PAX header without KEY=VALUE")
        found[key] = value[:-1]
    return found


def _shown(name: bytes) -> str:
    return repr(name.decode(errors="backslashreplace"))
