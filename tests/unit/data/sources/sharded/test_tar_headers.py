# SPDX-License-Identifier: Apache-2.0
"""Headers are read as Python's tarfile reads them; what it would read as garbage is refused."""

import gzip
import io
import tarfile

import pytest

from vit_jax.data.sources.sharded.tar_index import BLOCK, members

LONG = "a/" * 70 + "b" * 90 + ".jpg"  # longer than the prefix and the name of ustar
SPLIT = "d" * 80 + "/" + "e" * 60 + ".jpg"  # which ustar keeps in two fields


def read(data: bytes) -> list:
    return list(members(lambda start, stop: data[start:stop], len(data)))


def write(names: list[str], form: int, **of_member) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, encoding="utf-8") as tar:
        for i, name in enumerate(names):
            member = tarfile.TarInfo(name)
            for key, value in of_member.items():
                setattr(member, key, value)
            content = bytes([65 + i]) * (700 * i)
            member.size = 0 if member.type in (tarfile.SYMTYPE, tarfile.LNKTYPE) else len(content)
            tar.addfile(member, io.BytesIO(content))
    return out.getvalue()


def header(name: bytes, kind: bytes, size: bytes, magic: bytes = b"ustar  \0") -> bytes:
    """A header by hand; its checksum is right."""
    block = bytearray(name.ljust(124, b"\0") + size.ljust(12, b"\0") + bytes(12))
    block += b" " * 8 + kind + bytes(100) + magic
    block += bytes(BLOCK - len(block))
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % BLOCK)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_names_places_and_sizes_are_those_of_tarfile(form: int) -> None:
    names = ["x.jpg", SPLIT, "käse/ö.cls", "b\udcff.png", "deep/er/empty.txt"]
    if form != tarfile.USTAR_FORMAT:
        names += [LONG, "after.jpg"]
    else:
        names[3] = "b.png"
    data = write(names, form)
    found = read(data)
    assert [m.name.decode(errors="surrogateescape") for m in found] == names
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        expected = [(m.offset_data, m.size) for m in tar]
    assert [(m.start, m.size) for m in found] == expected
    contents = [data[m.start : m.start + m.size] for m in found]
    assert contents == [bytes([65 + i]) * (700 * i) for i in range(len(names))]


def test_folders_are_passed_over_and_links_are_told() -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in [("d", tarfile.DIRTYPE), ("f", tarfile.FIFOTYPE), ("a", tarfile.REGTYPE)]:
            member = tarfile.TarInfo(name)
            member.type = kind
            tar.addfile(member)
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
            member = tarfile.TarInfo("link.jpg")
            member.type, member.linkname = kind, "a" * 200  # of its own long header
            tar.addfile(member)
    found = read(out.getvalue())
    assert [(m.name, m.is_link) for m in found] == [
        (b"a", False),
        (b"link.jpg", True),
        (b"link.jpg", True),
    ]


def test_a_size_in_base_256_and_one_in_a_pax_record() -> None:
    size = b"\x80" + (5).to_bytes(11)
    data = header(b"a.jpg", b"0", size) + padded(b"12345") + bytes(BLOCK)
    assert [(m.start, m.size) for m in read(data)] == [(512, 5)]
    records = b"10 size=5\n" + b"12 path=b.x\n" + b"16 comment=a=b\n\n"
    pax = header(b"pax", b"x", b"%o" % len(records)) + padded(records)
    data = pax + header(b"a.jpg", b"0", b"0") + padded(b"12345") + bytes(2 * BLOCK)
    assert [(m.name, m.size, m.start) for m in read(data)] == [(b"b.x", 5, 1536)]


def test_records_for_all_that_follows() -> None:
    everything = header(b"g", b"g", b"14") + padded(b"12 mtime=12\n")
    members_ = (header(name, b"0", b"1") + padded(b"1") for name in (b"a", b"b"))
    assert [m.name for m in read(everything + b"".join(members_) + bytes(BLOCK))] == [b"a", b"b"]


def test_tars_one_behind_the_other_are_read_whole() -> None:
    data = write(["a.jpg", "b.jpg"], tarfile.PAX_FORMAT) + write(["c.jpg"], tarfile.GNU_FORMAT)
    assert [m.name for m in read(data)] == [b"a.jpg", b"b.jpg", b"c.jpg"]


def test_a_header_has_another_checksum_when_its_member_grows() -> None:
    one, two = (write(["a.jpg", "b.jpg"], tarfile.PAX_FORMAT, mtime=time) for time in (1, 2))
    crcs = [[m.crc for m in read(data)] for data in (one, two, one)]
    assert crcs[0] == crcs[2]
    assert not set(crcs[0]) & set(crcs[1])


PLAIN = write(["a.jpg", "b.jpg"], tarfile.GNU_FORMAT)[: 4 * BLOCK]  # headers, 700 bytes


@pytest.mark.parametrize(
    "data, message",
    [
        (PLAIN[: 3 * BLOCK], "cut off: 'b.jpg' ends at byte 1,724, and the file has 1,536"),
        (PLAIN[:700], "cut off in the header at byte 512"),
        (PLAIN, "cut off: the block of zeros"),
        (PLAIN[:BLOCK], "cut off: the block of zeros"),
        (PLAIN + b"x" * BLOCK, "damaged: no header of a tar at byte 2,048"),
        (PLAIN[:100] + b"y" + PLAIN[101:], "damaged: no header of a tar at byte 0"),
        (gzip.compress(PLAIN, mtime=0), "compressed, which has no random access"),
        (header(b"a.jpg", b"S", b"0"), "'a.jpg' is sparse"),
        (header(b"p", b"x", b"26") + padded(b"22 GNU.sparse.major=1\n") + PLAIN, "is sparse"),
        (header(b"p", b"x", b"4") + padded(b"9 ab") + PLAIN, "a PAX header without KEY=VALUE"),
        (header(b"p", b"x", b"4") + padded(b"0 a=") + PLAIN, "a PAX header without KEY=VALUE"),
        (header(b"L", b"L", b"7" * 7) + bytes(1 << 21), "a header of 2,097,151 bytes at byte 0"),
        (header(b"a", b"0", b"\x80" + b"\xff" * 11), "cut off: 'a' ends at"),
        (header(b"p", b"x", b"15") + padded(b"13 size=-512\n") + PLAIN, "cut off: 'a.jpg' ends at"),
    ],
    ids=lambda value: value if isinstance(value, str) else "tar",
)
def test_what_is_wrong_is_one_line(data: bytes, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        read(data)
    assert message in str(caught.value)
