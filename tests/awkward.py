# SPDX-License-Identifier: Apache-2.0
"""Image files of every kind that people have, made here: by Pillow, and by hand where it cannot.

`FILES` has them by (kind, name); the kinds are the rows of "How an image is read" in docs/data.md.
"""

import functools
import io
import struct
import zlib
from typing import NamedTuple

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image

PHOTO = load_sample_image("china.jpg")[100:124, 200:233]  # 24 x 33
HEIGHT, WIDTH = PHOTO.shape[:2]
GREY = PHOTO[..., 0]
DEEP = GREY.astype(np.uint16) * 257
ALPHA = np.linspace(0, 255, WIDTH).astype(np.uint8)[None].repeat(HEIGHT, 0)
LUMA = np.array([0.299, 0.587, 0.114])


class File(NamedTuple):
    """A file, and its pixels in RGB where they are known; None of one that is refused."""

    data: bytes
    pixels: np.ndarray | None = None
    refused: bool = False
    slack: int = 1  # levels by which the pixels may differ: what a lossy codec takes


def encode(image: np.ndarray | Image.Image, form: str, **options) -> bytes:
    out = io.BytesIO()
    picture = image if isinstance(image, Image.Image) else Image.fromarray(image)
    picture.save(out, form, **options)
    return out.getvalue()


def rgb(grey: np.ndarray) -> np.ndarray:
    return np.repeat(grey[..., None], 3, -1)


def on_white(pixels: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    share = alpha[..., None] / 255
    return np.rint(pixels * share + 255 * (1 - share)).astype(np.uint8)


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _rows(samples: np.ndarray, bits: int) -> bytes:
    """Pack the rows of a PNG, each behind a filter of none."""
    rows = samples.reshape(len(samples), -1)
    if bits >= 8:
        packed = [row.astype(">u2" if bits == 16 else "u1").tobytes() for row in rows]
    else:
        digits = (rows[..., None] >> np.arange(bits - 1, -1, -1) & 1).reshape(len(rows), -1)
        packed = [np.packbits(row.astype(np.uint8)).tobytes() for row in digits]
    return b"".join(b"\0" + row for row in packed)


def png(samples: np.ndarray, bits: int, kind: int, *before, after=(), interlaced=False) -> bytes:
    """Write a PNG by hand: `kind` 0 grey, 2 RGB, 3 palette, 4 and 6 with alpha; with chunks."""
    height, width = samples.shape[:2]
    steps = [(0, 0, 1, 1)]
    if interlaced:  # Adam7
        steps = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2)]
        steps += [(0, 1, 2, 2), (1, 0, 2, 1)]
    passes = [samples[top::down, left::right] for top, left, down, right in steps]
    raw = b"".join(_rows(each, bits) for each in passes if each.size)
    head = struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, int(interlaced))
    body = [(b"IHDR", head), *before, (b"IDAT", zlib.compress(raw)), *after, (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*each) for each in body)


def tiff(
    values: np.ndarray, bits: int, kind: int = 1, *, white: int = 1, order: str = "<"
) -> bytes:
    """Write an uncompressed grey TIFF by hand: `kind` 1 unsigned, 2 signed, 3 float."""
    height, width = values.shape
    if bits == 12:
        width -= width % 2
        values = values[:, :width]
        digits = np.stack([values >> 8, values >> 4 & 15, values & 15], -1).reshape(-1, 2)
        pixels = (digits[:, 0] << 4 | digits[:, 1]).astype(np.uint8).tobytes()
    else:
        pixels = values.astype(f"{order}{' uif'[kind]}{bits // 8}").tobytes()
    tags = {256: width, 257: height, 258: bits, 259: 1, 262: white, 273: 138}
    tags |= {277: 1, 278: height, 279: len(pixels), 339: kind}
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, tags[tag]) for tag in sorted(tags))
    entries = struct.pack(f"{order}H", len(tags)) + entries + bytes(4)
    start = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(f"{order}I", 8)
    return (start + entries).ljust(138, b"\0") + pixels


def bmp(pixels: np.ndarray, *, alpha: np.ndarray | None = None, upside: bool = False) -> bytes:
    """Write a BMP of 32 bits by hand, with masks; `upside`: from the top."""
    height, width = pixels.shape[:2]
    fourth = np.zeros((height, width), np.uint8) if alpha is None else alpha
    rows = np.concatenate([pixels[..., ::-1], fourth[..., None]], -1)
    body = (rows if upside else rows[::-1]).tobytes()
    masks = struct.pack("<IIII", 0xFF0000, 0xFF00, 0xFF, 0 if alpha is None else 0xFF000000)
    size = -height if upside else height
    head = struct.pack("<IiiHHIIiiII", 108, width, size, 1, 32, 3, len(body), 2835, 2835, 0, 0)
    head += masks + b"BGRs" + bytes(48)
    at = 14 + len(head)
    return b"BM" + struct.pack("<IHHI", at + len(body), 0, 0, at) + head + body


def netpbm(kind: int, values: np.ndarray, most: int = 255) -> bytes:
    height, width = values.shape[:2]
    head = f"P{kind}\n# by hand\n{width} {height}\n" + ("" if kind in (1, 4) else f"{most}\n")
    if kind <= 3:
        return (head + " ".join(map(str, values.ravel().tolist())) + "\n").encode()
    if kind == 4:
        return head.encode() + np.packbits(values.astype(np.uint8), axis=1).tobytes()
    return head.encode() + values.astype(">u2" if most > 255 else "u1").tobytes()


def with_exif(turn: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = turn
    return exif


def upright(pixels: np.ndarray, turn: int) -> np.ndarray:
    """Turn as EXIF's table of the eight says, written down once more."""
    moves = {
        1: lambda x: x,
        2: np.fliplr,
        3: lambda x: np.rot90(x, 2),
        4: np.flipud,
        5: lambda x: x.swapaxes(0, 1),
        6: lambda x: np.rot90(x, -1),
        7: lambda x: np.rot90(x.swapaxes(0, 1), 2),
        8: np.rot90,
    }
    return np.ascontiguousarray(moves[turn](pixels))


def multiplied(data: bytes) -> bytes:
    """Mark a TIFF's colours as multiplied by alpha (ExtraSamples 1), which Pillow cannot write."""
    entry = struct.pack("<HHIH", 338, 3, 1, 2)
    assert data.count(entry) == 1
    return data.replace(entry, struct.pack("<HHIH", 338, 3, 1, 1))


def without(data: bytes, marker: int) -> bytes:
    """Take a segment out of a JPEG."""
    at = data.index(bytes([0xFF, marker]))
    return data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) :]


@functools.cache
def files() -> dict[tuple[str, str], File]:
    """Return all files by kind and name."""
    found: dict[tuple[str, str], File] = {}

    def add(kind: str, name: str, data: bytes, pixels=None, **more) -> None:
        assert (kind, name) not in found
        found[kind, name] = File(data, pixels, **more)

    photo, grey = Image.fromarray(PHOTO), Image.fromarray(GREY)
    rgba = Image.fromarray(np.dstack([PHOTO, ALPHA]))
    la = Image.fromarray(np.dstack([GREY, ALPHA]), "LA")

    def lossy(name: str, image=photo, pixels=PHOTO, **options) -> None:
        add("JPEG", name, encode(image, "JPEG", quality=95, **options), pixels, slack=40)

    lossy("4:4:4", subsampling=0)
    lossy("4:2:2", subsampling=1)
    lossy("4:2:0", subsampling=2)
    lossy("progressive", progressive=True)
    lossy("restart markers", restart_marker_blocks=1)
    lossy("RGB inside", keep_rgb=True)
    lossy("grey", grey, rgb(GREY))
    lossy("ICC profile", icc_profile=b"no profile at all")
    lossy("comment", comment=b"\xff\xd9 an end that is none")
    whole = found["JPEG", "4:2:0"].data
    add("JPEG", "bytes behind its end", whole + b"motion" * 99, PHOTO, slack=40)
    add("JPEG", "thumbnail as EXIF", encode(photo, "JPEG", exif=b"Exif\0\0" + whole), None)
    damaged = bytearray(encode(photo, "JPEG", quality=95, restart_marker_blocks=1))
    middle = len(damaged) // 2
    damaged[middle : middle + 4] = bytes(4)
    add("JPEG", "zeros inside", bytes(damaged))
    for height, width in ((1, 1), (1, 3), (7, 9), (8, 16), (17, 1)):
        small = PHOTO[:height, :width]
        add("JPEG", f"{height} x {width}", encode(small, "JPEG", quality=95), small, slack=40)
        add("PNG", f"{height} x {width}", png(small, 8, 2), small)
    cmyk = encode(photo.convert("CMYK"), "JPEG", quality=95)
    add("CMYK", "JPEG of Adobe's", cmyk, PHOTO, slack=40)
    add("CMYK", "JPEG without Adobe's marker", without(cmyk, 0xEE))
    add("CMYK", "TIFF", encode(photo.convert("CMYK"), "TIFF"), PHOTO)

    add("PNG", "RGB", png(PHOTO, 8, 2), PHOTO)
    add("PNG", "grey", png(GREY, 8, 0), rgb(GREY))
    add("PNG", "interlaced", png(PHOTO, 8, 2, interlaced=True), PHOTO)
    for bits in (1, 2, 4):
        levels = GREY >> 8 - bits
        scaled = (levels.astype(int) * 255 // (2**bits - 1)).astype(np.uint8)
        add("PNG", f"grey of {bits} bits", png(levels, bits, 0), rgb(scaled))
    index = np.asarray(photo.quantize(16))
    table = np.asarray(photo.quantize(16).getpalette(), np.uint8)[:48].reshape(16, 3)
    palette = (b"PLTE", table.tobytes())
    add("palette", "PNG of 8 bits", png(index, 8, 3, palette), table[index])
    add("palette", "PNG of 4 bits", png(index, 4, 3, palette), table[index])
    add("palette", "PNG of 1 bit", png(index & 1, 1, 3, palette), table[index & 1])
    add("palette", "GIF", encode(photo.quantize(16), "GIF"), table[index])
    add("palette", "BMP", encode(photo.quantize(16), "BMP"), table[index])
    add("palette", "TIFF", encode(photo.quantize(16), "TIFF"), table[index])
    colours = {
        "gAMA of 2.2": (b"gAMA", struct.pack(">I", 45455)),
        "gAMA of 1": (b"gAMA", struct.pack(">I", 100000)),
        "sRGB": (b"sRGB", b"\0"),
        "cHRM": (
            b"cHRM",
            struct.pack(">8I", 31270, 32900, 64000, 33000, 30000, 60000, 15000, 6000),
        ),
        "iCCP": (b"iCCP", b"p\0\0" + zlib.compress(b"no profile")),
    }
    for name, each in colours.items():
        add("gamma and profiles", f"PNG, {name}", png(PHOTO, 8, 2, each), PHOTO)
    add("gamma and profiles", "WebP", encode(photo, "WEBP", lossless=True, icc_profile=b"x"), PHOTO)

    add("16 bits", "PNG, grey", png(DEEP, 16, 0), rgb(GREY))
    add("16 bits", "PNG, RGB", png(PHOTO.astype(np.uint16) * 257, 16, 2), PHOTO)
    twelve = (GREY.astype(np.uint16) << 8 | GREY & 0xF0).astype(np.uint16)
    add("16 bits", "PNG, 12 of them (sBIT)", png(twelve, 16, 0, (b"sBIT", b"\x0c")), rgb(GREY))
    add("16 bits", "TIFF", tiff(DEEP, 16), rgb(GREY))
    add("16 bits", "TIFF, big-endian", tiff(DEEP, 16, order=">"), rgb(GREY))
    add("16 bits", "TIFF, white is zero", tiff(65535 - DEEP, 16, white=0), rgb(GREY))
    add("16 bits", "TIFF of 12", tiff(DEEP >> 4, 12), rgb(GREY[:, : WIDTH - WIDTH % 2]))
    add("16 bits", "PGM", netpbm(5, DEEP, 65535), rgb(GREY))
    add("16 bits", "PGM of 10", netpbm(5, GREY.astype(int) * 4, 1020), rgb(GREY))
    add("16 bits", "PGM of 4", netpbm(5, GREY >> 4, 15), rgb((GREY >> 4) * 17))
    for name, data in {
        "TIFF of floats": tiff(GREY / 255, 32, 3),
        "TIFF of int32": tiff(GREY, 32, 2),
        "TIFF of int16": tiff(GREY, 16, 2),
        "PFM": f"Pf {WIDTH} {HEIGHT} -1\n".encode() + GREY.astype("<f4").tobytes(),
    }.items():
        add("numbers of unknown white", name, data, refused=True)

    laid, grey_laid = on_white(PHOTO, ALPHA), rgb(on_white(rgb(GREY), ALPHA)[..., 0])
    add("alpha", "PNG", encode(rgba, "PNG"), laid)
    add("alpha", "PNG, grey", encode(la, "PNG"), grey_laid)
    deep_rgba = np.dstack([PHOTO, ALPHA]).astype(np.uint16) * 257
    add("alpha", "PNG of 16 bits", png(deep_rgba, 16, 6), laid)
    add(
        "alpha",
        "PNG of 16 bits, grey",
        png(np.dstack([DEEP, ALPHA.astype(np.uint16) * 257]), 16, 4),
        grey_laid,
    )
    add("alpha", "WebP", encode(rgba, "WEBP", lossless=True, exact=True), laid)
    add("alpha", "WebP, lossy", encode(rgba, "WEBP", quality=95), laid, slack=60)
    add("alpha", "AVIF", encode(rgba, "AVIF", quality=95), laid, slack=60)
    add("alpha", "TIFF", encode(rgba, "TIFF"), laid)
    add("alpha", "TIFF, grey", encode(la, "TIFF"), grey_laid)
    times = (PHOTO * (ALPHA[..., None] / 255)).round().astype(np.uint8)
    ready = Image.fromarray(np.dstack([times, ALPHA]))
    add("alpha", "TIFF, multiplied", multiplied(encode(ready, "TIFF")), laid, slack=2)
    dim = Image.fromarray(np.dstack([times[..., 0], ALPHA]), "LA")
    add("alpha", "BMP", bmp(PHOTO, alpha=ALPHA), laid)
    add("alpha", "all clear", encode(np.zeros((5, 6, 4), np.uint8), "PNG"), np.full((5, 6, 3), 255))

    clear = np.where((index == index[0, 0])[..., None], 255, table[index]).astype(np.uint8)
    at = int(index[0, 0])
    several = bytes(0 if k == at else 255 for k in range(16))
    half = bytes(range(0, 256, 16))
    add("one clear colour", "PNG, palette", png(index, 4, 3, palette, (b"tRNS", several)), clear)
    mixed = on_white(table[index], np.frombuffer(half, np.uint8)[index])
    add(
        "one clear colour",
        "PNG, palette of alphas",
        png(index, 8, 3, palette, (b"tRNS", half)),
        mixed,
    )
    add("one clear colour", "GIF", encode(photo.quantize(16), "GIF", transparency=at), clear)

    def keyed(samples: np.ndarray, pixels: np.ndarray, bits: int, kind: int) -> tuple:
        key = samples[0, 0].reshape(-1)
        gone = (samples.reshape(HEIGHT, WIDTH, -1) == key).all(-1)
        data = png(samples, bits, kind, (b"tRNS", key.astype(">u2").tobytes()))
        return data, np.where(gone[..., None], 255, pixels).astype(np.uint8)

    add("one clear colour", "PNG, RGB", *keyed(PHOTO, PHOTO, 8, 2))
    near = PHOTO.astype(np.uint16) * 257
    near[0, 1:9] = near[0, 0] + 1  # other colours, which 8 bits cannot tell apart
    add("one clear colour", "PNG, RGB of 16 bits", *keyed(near, near >> 8, 16, 2))
    add("one clear colour", "PNG, grey", *keyed(GREY, rgb(GREY), 8, 0))
    add("one clear colour", "PNG, grey of 16 bits", *keyed(DEEP, rgb(GREY), 16, 0))
    for bits, factor in ((1, 255), (2, 85), (4, 17)):
        levels = GREY >> 8 - bits
        add(
            "one clear colour",
            f"PNG, grey of {bits}",
            *keyed(levels, rgb(levels * factor), bits, 0),
        )

    for turn in range(1, 9):
        pixels = upright(PHOTO, turn)
        exif = with_exif(turn)
        data = encode(photo, "JPEG", quality=95, exif=exif)
        add("orientation", f"JPEG, {turn}", data, pixels, slack=40)
        add("orientation", f"PNG, {turn}", encode(photo, "PNG", exif=exif), pixels)
        data = encode(photo, "WEBP", lossless=True, exif=exif)
        add("orientation", f"WebP, {turn}", data, pixels)
        add("orientation", f"TIFF, {turn}", encode(photo, "TIFF", exif=exif), pixels)
        data = encode(photo, "AVIF", quality=95, exif=exif)
        add("orientation", f"AVIF, {turn}", data, pixels, slack=60)
    late = (b"eXIf", with_exif(6).tobytes()[6:])
    add("orientation", "PNG, behind the pixels", png(PHOTO, 8, 2, after=[late]), upright(PHOTO, 6))
    profile = with_exif(6).tobytes()
    text = f"\nexif\n{len(profile):8}\n{profile.hex()}\n".encode()
    raw = (b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))
    add("orientation", "PNG, as ImageMagick's text", png(PHOTO, 8, 2, raw), upright(PHOTO, 6))
    turned_alpha = encode(rgba, "PNG", exif=with_exif(8))
    add("orientation", "PNG with alpha", turned_alpha, upright(laid, 8))
    add(
        "orientation",
        "progressive JPEG",
        encode(photo, "JPEG", quality=95, progressive=True, exif=with_exif(6)),
        upright(PHOTO, 6),
        slack=40,
    )
    odd = b"Exif\0\0" + struct.pack(">2sHIHHHI4sI", b"MM", 42, 8, 1, 0x0112, 2, 3, b"up", 0)
    for name, exif in {"a word": odd, "77": with_exif(77), "noise": b"Exif\0\0" + bytes(9)}.items():
        add(
            "orientation",
            f"JPEG, broken: {name}",
            encode(photo, "JPEG", quality=95, exif=exif),
            PHOTO,
            slack=40,
        )

    other = Image.new("RGB", photo.size, "red")
    frames = {"save_all": True, "append_images": [other]}
    small = photo.quantize(16).convert("RGB")
    add("several frames", "GIF", encode(small, "GIF", **frames), np.asarray(small))
    add(
        "several frames",
        "GIF, disposed of",
        encode(small, "GIF", disposal=2, **frames),
        np.asarray(small),
    )
    add("several frames", "PNG", encode(photo, "PNG", **frames), PHOTO)
    add(
        "several frames",
        "PNG, a picture apart",
        encode(photo, "PNG", default_image=True, save_all=True, append_images=[other, photo]),
        PHOTO,
    )
    add("several frames", "WebP", encode(photo, "WEBP", lossless=True, **frames), PHOTO)
    add("several frames", "TIFF", encode(photo, "TIFF", **frames), PHOTO)
    add("several frames", "MPO", encode(photo, "MPO", quality=95, **frames), PHOTO, slack=40)
    add("several frames", "AVIF", encode(photo, "AVIF", quality=95, **frames), PHOTO, slack=60)

    add("other formats", "WebP", encode(photo, "WEBP", lossless=True), PHOTO)
    add("other formats", "WebP, lossy", encode(photo, "WEBP", quality=95), PHOTO, slack=60)
    avif = encode(photo, "AVIF", quality=95)
    add("other formats", "AVIF", avif, PHOTO, slack=60)
    add("other formats", "AVIF, brand mif1", avif[:8] + b"mif1" + avif[12:], PHOTO, slack=60)
    add("other formats", "BMP", encode(photo, "BMP"), PHOTO)
    add("other formats", "BMP of 32 bits", bmp(PHOTO), PHOTO)
    add("other formats", "BMP, top first", bmp(PHOTO, upside=True), PHOTO)
    bit = (GREY > 127).astype(np.uint8)
    add(
        "other formats",
        "BMP of 1 bit",
        encode(Image.fromarray(bit * 255).convert("1"), "BMP"),
        rgb(bit * 255),
    )
    for compression in ("tiff_lzw", "tiff_adobe_deflate", "packbits"):
        add(
            "other formats",
            f"TIFF, {compression}",
            encode(photo, "TIFF", compression=compression),
            PHOTO,
        )
    add(
        "other formats",
        "TIFF of 1 bit",
        encode(Image.fromarray(bit * 255).convert("1"), "TIFF", compression="group4"),
        rgb(bit * 255),
    )
    add("other formats", "TIFF of CIELAB", encode(Image.new("LAB", (9, 9)), "TIFF"))
    for kind, values in {1: 1 - bit, 2: GREY, 3: PHOTO, 4: 1 - bit, 5: GREY, 6: PHOTO}.items():
        pixels = {1: rgb(bit * 255), 2: rgb(GREY), 3: PHOTO}[(kind - 1) % 3 + 1]
        add("other formats", f"P{kind}", netpbm(kind, values), pixels)

    for form in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "PPM"):
        noise = np.random.default_rng(0).integers(0, 256, PHOTO.shape, np.uint8)
        data = encode(noise, form)
        for part in (0.98, 0.5, 0.05):
            cut = data[: int(len(data) * part)]
            add("cut off", f"{form}, {part:.0%}", cut, refused=True)
    add(
        "cut off", "JPEG, progressive", encode(noise, "JPEG", progressive=True)[:-200], refused=True
    )
    add("cut off", "PNG with alpha", encode(rgba, "PNG")[:-200], refused=True)
    lying = bytearray(whole)
    lying[whole.index(b"\xff\xc0") + 4] = 12
    add("no image", "JPEG of 12 bits", bytes(lying), refused=True)
    add("no image", "nothing", b"", refused=True)
    add("no image", "a page", b"<html>404</html>", refused=True)
    add("no image", "HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(99), refused=True)
    add(
        "no image", "PostScript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", refused=True
    )
    add("no image", "TIFF, grey, multiplied", multiplied(encode(dim, "TIFF")), refused=True)
    add("no image", "a strip", encode(np.zeros((1, 600), np.uint8), "PNG"), refused=True)
    return found
