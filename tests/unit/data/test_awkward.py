# SPDX-License-Identifier: Apache-2.0
"""Every reader of images makes the same pixels of every awkward file, or says the same of it."""

import ast
import io
import re
import warnings
from collections import defaultdict
from pathlib import Path

import cv2
import numpy as np
import PIL
import pytest
from PIL import Image

import vit_jax
from tests.awkward import File, encode, files
from vit_jax import data, models
from vit_jax.data.config import OLD_READING, Background, Crop, DataConfig, Reading, TransformConfig
from vit_jax.data.images import header as image_header
from vit_jax.data.images import ops
from vit_jax.data.images.decode import decode
from vit_jax.data.sources.dense.masks import open_masks, pixels_of
from vit_jax.data.stream.transform import Transform, one_view
from vit_jax.errors import DataError, UserError
from vit_jax.inference.images import read_image
from vit_jax.inference.trained import Trained
from vit_jax.inference.views import read_view
from vit_jax.visual.augmentation_sheets import Examples

FAST = 24  # levels by which training's JPEG may differ: its inverse DCT and its chroma
SIDE = 16
PAIR = (("images", "jpg"), ("masks", "png"))
WHOLE = TransformConfig(crop=Crop.RESIZE)
RULES = [Reading(), OLD_READING, Reading(Background.DROP), Reading(Background.BLACK, upright=False)]


def is_jpeg(file: File) -> bool:
    return file.data.startswith(image_header.JPEG)


def what(data: bytes, channels: int, rules: Reading) -> np.ndarray | str:
    try:
        return decode(data, channels, rules)
    except ValueError as error:
        return str(error)


def source(*read: File) -> Examples:
    return Examples("awkward", [file.data for file in read], ("class",), ["file"] * len(read))


def trained(channels: int, rules: Reading) -> Trained:
    model = models.variant("vit_ti16")
    model.image_size, model.channels = (SIDE,), channels
    fields = {"mean": (0.5,), "std": (0.5,), "transform": WHOLE, "class_names": ()}
    return Trained(ref="", source="", model=model, reading=rules, **fields)


def test_pixels_are_those_that_were_written() -> None:
    assert len(files()) > 150
    for (kind, name), file in files().items():
        found = what(file.data, 3, Reading())
        assert isinstance(found, str) == file.refused, (kind, name, found)
        if isinstance(found, str):
            continue
        if file.pixels is not None:
            assert found.shape == file.pixels.shape, (kind, name)
            assert np.abs(found.astype(int) - file.pixels).max() <= file.slack, (kind, name)
        grey = decode(file.data, 1)
        luma = found.astype(float) @ [0.299, 0.587, 0.114]
        # A lossy file stores the grey, and clips colours out of range.
        slack = 1.01 if file.slack <= 2 and not is_jpeg(file) and kind != "CMYK" else 40
        assert np.abs(grey[..., 0] - luma).max() <= slack, (kind, name)


@pytest.mark.parametrize("channels", [3, 1])
@pytest.mark.parametrize("rules", RULES, ids=str)
def test_all_readers_agree_to_the_bit(rules: Reading, channels: int, tmp_path: Path) -> None:
    path, batched = tmp_path / "x.png", []
    seen = trained(channels, rules)
    views = one_view(WHOLE, (SIDE, SIDE), channels, rules)
    for (kind, name), file in files().items():
        path.write_bytes(file.data)
        where = kind, name
        wanted = what(file.data, channels, rules)
        if isinstance(wanted, str):
            said = f"{path}: {wanted[0].lower()}{wanted[1:]}"
            with pytest.raises(UserError) as error:
                read_image(path, channels, rules)
            assert str(error.value) == " ".join(said.split()), where
            assert read_view(seen, path) == str(error.value), where
            reason = wanted.splitlines()[0].strip()
            stream = data.eval_batches(source(file), views, batch_size=1)
            with stream, pytest.raises(DataError, match=re.escape(reason)):
                next(stream)
            cfg = DataConfig(batch_size=1, transform=WHOLE)
            stream = data.train_batches(source(file), cfg, views=views, seed=0)
            with stream, pytest.raises(DataError, match=re.escape(reason)):
                next(stream)
            continue
        np.testing.assert_array_equal(read_image(path, channels, rules), wanted, str(where))
        np.testing.assert_array_equal(read_image(file.data, channels, rules), wanted)
        small = ops.resize(wanted, (SIDE, SIDE), WHOLE.resize)
        for one in (path, str(path), file.data, io.BytesIO(file.data), bytearray(file.data)):
            np.testing.assert_array_equal(read_view(seen, one), small, str(where))
        batched.append((where, file, small))
    read = source(*(file for _, file, _ in batched))
    with data.eval_batches(read, views, batch_size=len(batched)) as stream:
        images = next(stream)["image"]
    for (where, _, small), image in zip(batched, images, strict=True):
        np.testing.assert_array_equal(image, small, str(where))


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_training_sees_the_same_but_for_the_fast_decoding_of_jpegs(rules: Reading) -> None:
    for (kind, name), file in files().items():
        wanted = what(file.data, 3, rules)
        if isinstance(wanted, str):
            continue
        size = wanted.shape[:2]
        slack = FAST if is_jpeg(file) else 0
        settings = {"channels": 3, "exact": False, "reading": rules}
        # The whole image as such, and as a box that is read in part or is all there is.
        for cfg in (
            TransformConfig(crop=Crop.NONE),
            TransformConfig(crop=Crop.RANDOM_RESIZED, area=(1.0, 1.0), aspect=(1e-3, 1e3)),
        ):
            for shared in (False, True):
                transform = Transform(cfg=cfg, image_size=size, shared=shared, **settings)
                found = transform(file.data, np.random.default_rng(0))
                close = np.abs(found.astype(int) - wanted).max() <= slack
                assert close or cfg.crop is not Crop.NONE, (kind, name, rules)
                if cfg.crop is not Crop.NONE and min(size) > 8:
                    assert np.abs(found.astype(int) - wanted).mean() < 12, (kind, name, rules)


def test_boxes_of_turned_photographs_are_cut_where_they_lie_upright() -> None:
    """A box of a large JPEG is decoded in part or at half size, in upright coordinates."""
    rows, columns = np.mgrid[:192, :256]
    ramp = np.stack([rows, columns, rows // 2 + columns // 4], -1).astype(np.uint8)
    for turn in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = turn
        photo = encode(ramp, "JPEG", quality=95, exif=exif)
        upright = encode(decode(photo, 3), "PNG")
        for resize in ("bilinear", "bilinear_antialias"):
            for seed in range(12):
                cfg = TransformConfig(crop=Crop.INCEPTION, resize=data.Resize(resize))
                transform = Transform(cfg=cfg, image_size=(24, 20), channels=3, exact=False)
                one, other = (transform(x, np.random.default_rng(seed)) for x in (photo, upright))
                assert np.abs(one.astype(int) - other).mean() < 4, (turn, resize, seed)


def test_an_open_pillow_image_is_its_file() -> None:
    for (kind, name), file in files().items():
        # What Pillow has lost when it has opened a file: the 16 bits of colours.
        if name == "PNG, RGB of 16 bits" and kind == "one clear colour":
            continue
        for rules in (Reading(), OLD_READING):
            seen = trained(3, rules)
            wanted = read_view(seen, file.data)
            try:
                image = Image.open(io.BytesIO(file.data), formats=image_header.FORMATS)
            except Exception:
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = read_view(seen, image)
            if isinstance(wanted, str) or isinstance(found, str):
                assert kind in ("cut off", "no image") or found == wanted, (kind, name)
            else:
                slack = 1 if is_jpeg(file) else 0
                if not (kind == "several frames" and rules == OLD_READING):
                    assert np.abs(found.astype(int) - wanted).max() <= slack, (kind, name, rules)


def test_masks_are_turned_with_their_images(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("a\nb\nc\nd\n")
    for turn in range(1, 9):
        file = files()["orientation", f"JPEG, {turn}"]
        image, mask = (tmp_path / kind / f"{turn}/x.{end}" for kind, end in PAIR)
        for path in (image, mask):
            path.parent.mkdir(parents=True)
        image.write_bytes(file.data)
        stored = decode(file.data, 1, OLD_READING)[..., 0] // 64
        upright = decode(file.data, 1)[..., 0] // 64
        for each in (stored, upright) if turn > 4 else (upright,):
            mask.write_bytes(encode(each, "PNG"))
            source = open_masks(str(tmp_path), str(turn))
            for reading in (Reading(), OLD_READING):
                pixels, ids = pixels_of(source, 0, 1, reading)
                np.testing.assert_array_equal(pixels[..., 0] // 64, ids)


def test_every_view_in_the_package_names_the_rules_by_which_it_reads() -> None:
    """The default is for callers outside: a run that forgot its own would read by another rule."""
    found = 0
    for path in Path(vit_jax.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            keywords = {each.arg for each in node.keywords}
            if name in ("one_view", "split_batches"):
                found += 1
                assert len(node.args) == 4 or "reading" in keywords, f"{path}:{node.lineno}"
            if name in ("View", "Transform") and "image_size" in keywords | {"image_size"}:
                found += name == "View"
                assert "reading" in keywords, f"{path}:{node.lineno}"
            if name in ("read_image", "read_pillow"):
                assert len(node.args) == 3, f"{path}:{node.lineno}"
    assert found >= 9


def others(file: File) -> dict[str, str]:
    """Return what Pillow and OpenCV make of a file that is read here: same, other or nothing."""

    def by_pillow() -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(file.data)).convert("RGB"))

    def by_opencv() -> np.ndarray:
        found = cv2.imdecode(np.frombuffer(file.data, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert found is not None
        return found

    told, ours = {}, decode(file.data, 3)
    for name, run in {"Pillow": by_pillow, "OpenCV": by_opencv}.items():
        try:
            theirs = run()
        except Exception:
            told[name] = "refused"
            continue
        same = theirs.shape == ours.shape and np.abs(theirs.astype(int) - ours).max() <= 2
        told[name] = "same" if same else "other"
    return told


def test_the_table_of_the_manual_is_true() -> None:
    page = (Path(__file__).parents[3] / "docs" / "data.md").read_text("utf-8")
    table = page.partition("### How an image is read")[2].partition("\n\n|")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines()]
    written = {row[0]: row[2:] for row in rows[2:]}
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for (kind, _), file in files().items():
            for name, each in others(file).items() if not file.refused else ():
                found[kind][name].append(each)
    kinds = {kind for kind, _ in files()}
    assert written.keys() == kinds, kinds ^ written.keys()
    if (PIL.__version__.split(".")[0], cv2.__version__.split(".")[0]) != ("12", "5"):
        pytest.skip("the table is of Pillow 12 and OpenCV 5")
    for kind, (pillow, opencv) in written.items():
        for text, name in ((pillow, "Pillow"), (opencv, "OpenCV")):
            counts = found[kind][name]
            told = ", ".join(
                f"{counts.count(word)} {word}"
                for word in ("same", "other", "refused")
                if word in counts
            )
            assert text == (told or "-"), (kind, name)
