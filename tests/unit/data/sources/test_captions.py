# SPDX-License-Identifier: Apache-2.0
"""Captions of every kind of data: found, counted where they lack, drawn by (seed, position)."""

import io
import json
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow_datasets as tfds

from tests.photos import tiny
from tests.shards import write_tar
from vit_jax.data import (
    Captions,
    DataConfig,
    Tokenized,
    TransformConfig,
    all_captions,
    eval_batches,
    has_captions,
    one_view,
    open_source,
    train_batches,
)
from vit_jax.data.account import LeftOut
from vit_jax.data.config import Crop
from vit_jax.data.order import ExampleRng
from vit_jax.data.sources import captions
from vit_jax.data.sources.base import account_of
from vit_jax.data.sources.partition import same_draw
from vit_jax.errors import DataError, UserError
from vit_jax.text.tokenizers import Rows

NEEDED = Captions.NEEDED
PLAIN = TransformConfig(crop=Crop.RESIZE)
VIEWS = one_view(PLAIN, (2, 2), 3)
FIELDS = ("tokens", "caption_id", "cut")


class Bytes:
    """A tokenizer of UTF-8's bytes, padded with zeros."""

    def __init__(self, length: int = 8) -> None:
        self.length = length

    def rows(self, texts: Sequence[str]) -> Rows:
        rows = np.zeros((len(texts), self.length), np.int32)
        for row, text in zip(rows, texts, strict=True):
            data = text.encode()[: self.length]
            row[: len(data)] = list(data)
        return Rows(rows, np.array([len(text.encode()) > self.length for text in texts]))


def text_of(tokens: np.ndarray) -> str:
    return bytes(tokens[tokens > 0].tolist()).decode()


def opened(name: str, wanted: Captions = NEEDED, split: str = "whole") -> Any:
    return pickle.loads(pickle.dumps(open_source(name, split=split, captions=wanted)))


def left_out(source: Any) -> Any:
    counted = account_of(source)
    assert counted is not None
    return counted.left_out


def test_a_value_of_captions() -> None:
    for value, expected in (
        (" a  cat\n", ("a  cat",)),
        (b"caf\xc3\xa9", ("caf\u00e9",)),
        (["a", None, " ", b"b", float("nan")], ("a", "b")),
        (np.array([b"x", b"y"], object), ("x", "y")),
        ({"text": [b"x", b"y"], "id": [1, 2]}, ("x", "y")),
        ([{"raw": "p", "id": 3}, {"raw": "q", "id": 4}], ("p", "q")),
        (None, ()),
        ({"id": 3}, ()),
    ):
        assert captions.listed(value) == (expected, 0)
    assert captions.listed([b"\xff a", "\ud800", "b"]) == (
        ("\ufffd a", "\ufffd\ufffd\ufffd", "b"),
        2,
    )
    with pytest.raises(ValueError, match="a caption is text, and this is of type int"):
        captions.listed([3])


def test_an_id_is_31_bits_of_the_text() -> None:
    ids = [captions.caption_id(f"caption {i}") for i in range(1000)]
    assert len({*ids}) == 1000
    assert min(ids) >= 0
    assert 2**30 < max(ids) < 2**31
    assert captions.caption_id("a cat") == 1084654603


TAR = {
    "a.jpg": tiny("a"),
    "a.txt": b" a dog \n",
    "a.json": b'{"caption": "another", "label": 1}',
    "b.jpg": tiny("b"),
    "b.json": json.dumps({"Captions": ["one", "", "two"]}).encode(),
    "c.jpg": tiny("c"),
    "c.json": b'{"TEXT": "caf\xe9", "alt": "other"}',
    "d.jpg": tiny("d"),
    "d.txt": b"  ",
    "e.jpg": tiny("e"),
    "f.jpg": tiny("f"),
    "f.json": b"no JSON",
    "g.txt": b"of no image",
    "x/h.jpg": tiny("h"),
    "x/h.txt": "\u00fcber".encode(),
}


def test_a_tar(tmp_path: Path) -> None:
    name = str(write_tar(tmp_path / "0.tar", {k: v for k, v in TAR.items() if k != "f.json"}))
    found = opened(name)
    assert found.has_captions
    texts = [("a dog",), ("one", "two"), ("caf\ufffd",), ("\u00fcber",)]
    assert all_captions(found) == [found.read(i)["captions"] for i in range(4)] == texts
    assert [found.read(i)["image"] for i in range(4)] == [*map(tiny, "abch")]
    assert left_out(found)["without a caption"] == LeftOut(
        3, ("0.tar/d.jpg", "0.tar/e.jpg", "0.tar/f.jpg")
    )
    assert (
        account_of(found).found == account_of(opened(f"{name}?label=none", Captions.UNREAD)).found
    )
    assert any("1 captions are not UTF-8" in note for note in account_of(found).notes)
    kept = opened(name, Captions.READ)
    assert all_captions(kept) == [*texts[:3], (), (), (), texts[3]]
    # A key of the JSON by its name, and once more from the index that is kept.
    for _ in range(2):
        assert all_captions(opened(f"{name}?captions=alt")) == [("other",)]
    with pytest.raises(DataError, match=r"f.json' is no JSON"):
        opened(str(write_tar(tmp_path / "1.tar", TAR)))
    damaged = name and opened(name)
    write_tar(tmp_path / "0.tar", {**TAR, "a.txt": b"longer than before"})
    with pytest.raises(DataError, match=r"0.tar: a.jpg: the file has another header"):
        damaged.captions(0)


def test_images_alone_are_read_as_without_captions(tmp_path: Path) -> None:
    name = str(write_tar(tmp_path / "0.tar", {"a.jpg": b"a", "a.txt": b"x", "b.jpg": b"b"}))
    opened(name)
    found = opened(name, Captions.UNREAD)
    assert not has_captions(found)
    assert len(found) == 2
    assert found.read(0) == {"image": b"a", "label": -1}
    assert len(list(tmp_path.glob("vit_jax-index-*.npz"))) == 2


def write_parquet(folder: Path, **columns: Any) -> str:
    images = [
        {"bytes": tiny(f"{i}"), "path": None} for i in range(len(next(iter(columns.values()))))
    ]
    pq.write_table(pa.table({"image": images, **columns}), folder / "0.parquet", row_group_size=2)
    return str(folder / "0.parquet")


def test_parquet(tmp_path: Path) -> None:
    for column, texts in (
        ({"caption": ["a", "", None, "d", " "]}, [("a",), ("d",)]),
        ({"sentences": [["a", "b"], [], ["c"], None, ["", "e"]]}, [("a", "b"), ("c",), ("e",)]),
        ({"Text": [[{"raw": "a", "id": 1}], None, None, None, None]}, [("a",)]),
        (
            {"captions": pa.array([b"a", b"\xe9", b"c", b"d", b"e"]).view(pa.string())},
            list("a\ufffdcde"),
        ),
    ):
        name = write_parquet(tmp_path, **column)
        found = opened(name)
        assert all_captions(found) == [tuple(each) for each in texts]
        example = found.read(len(texts) - 1)
        assert example["captions"] == tuple(texts[-1])
        lost = left_out(found).get("without a caption", LeftOut(0, ()))
        assert lost.count == 5 - len(found) == 5 - len(texts)
        assert len(opened(name, Captions.UNREAD)) == len(opened(name, Captions.READ)) == 5
    assert account_of(found).notes[0].startswith("1 captions are not UTF-8")
    named = write_parquet(tmp_path, alt=["a", "b"], label=[3, 4], n=[1, 2])
    assert opened(f"{named}?captions=alt").read(1)["captions"] == ("b",)
    assert opened(f"hf:{tmp_path}?captions=alt").read(1)["label"] == 4


def test_csv(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / f"{i}.png").write_bytes(tiny(f"{i}"))
    file = tmp_path / "mine.csv"
    cases = {
        'path,caption\n0.png,a dog\n1.png,\n2.png\n3.png,"a, b"\n': [("a dog",), ("a, b",)],
        'path;label;Captions\n0.png;x;["a", "", "b"]\n1.png;y;[c]\n': [("a", "b"), ("[c]",)],
        "filepath\ttitle\n0.png\ta\n1.png\tb\n": [("a",), ("b",)],
        # A row for each caption, and one of them twice.
        "path,text\n0.png,a\n0.png,b\n1.png,c\n0.png,a\n": [("a", "b"), ("c",)],
    }
    for text, expected in cases.items():
        file.write_text(text)
        found = opened(f"csv:{file}")
        assert (
            all_captions(found)
            == [found.read(i)["captions"] for i in range(len(found))]
            == expected
        )
        counted = account_of(found)
        assert (counted.unit, counted.notes) == ("images", ())
    assert left_out(found) == {"doubled rows": LeftOut(1, ("0.png",))}
    file.write_text(next(iter(cases)))
    assert left_out(opened(f"csv:{file}"))["without a caption"] == LeftOut(2, ("1.png", "2.png"))
    with pytest.raises(
        UserError, match="has the columns path, caption; its first line must name path,label"
    ):
        opened(f"csv:{file}", Captions.UNREAD)
    file.write_text("path,label,caption,alt\n0.png,3,a,b\n1.png,,c,d\n")
    one, two = (opened(f"csv:{file}{end}") for end in ("", "?captions=alt"))
    assert all_captions(two) == [("b",), ("d",)]
    assert one.labels.tolist() == [0, -1]
    assert one.digest() != two.digest() != opened(f"csv:{file}", Captions.UNREAD).digest()
    assert opened(f"csv:{file}", Captions.UNREAD).read(0)["label"] == 0
    file.write_text("path,label,caption\n0.png,3,a\n1.png,4,b\n2.png,4,c\n")
    part = open_source(f"csv:{file}", split="whole", captions=NEEDED, classes=(1,))
    assert all_captions(part) == [part.read(i)["captions"] for i in range(2)] == [("b",), ("c",)]
    assert same_draw(f"csv:{file}?captions=alt", f"csv:{file}")
    assert not same_draw(f"csv:{file}?captions=alt&split_seed=1", f"csv:{file}")


class Captioned(tfds.core.GeneratorBasedBuilder):
    """Images as coco_captions has them, and with a plain text beside."""

    name = "captioned"
    VERSION = tfds.core.Version("1.0.0")
    code_path = None

    def _info(self):
        sequence = {"text": tfds.features.Text(), "id": tfds.features.Scalar(np.int64)}
        features = {
            "image": tfds.features.Image(encoding_format="png"),
            "image/filename": tfds.features.Text(),
            "captions": tfds.features.Sequence(sequence),
            "title": tfds.features.Text(),
        }
        info = tfds.features.FeaturesDict(features)
        return tfds.core.DatasetInfo(builder=self, features=info, disable_shuffling=True)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for i, texts in enumerate((["a", "b"], [], ["c\u00e9"])):
            listed = [{"text": text, "id": i} for text in texts]
            example = {"image": io.BytesIO(tiny(f"{i}")), "image/filename": f"{i}.jpg"}
            yield i, {**example, "captions": listed, "title": f"title {i}"}


@pytest.fixture(scope="module")
def coco(tmp_path_factory) -> str:
    root = tmp_path_factory.mktemp("captioned")
    Captioned(data_dir=root, file_format="array_record").download_and_prepare()
    return str(root)


def test_tfds(coco: str) -> None:
    found = open_source("captioned", coco, captions=NEEDED)
    assert all_captions(found) == [("a", "b"), (), ("c\u00e9",)]
    assert found.read(0)["label"] == -1
    titles = open_source("captioned?captions=title", coco, captions=NEEDED)
    assert all_captions(titles)[2] == ("title 2",)
    with pytest.raises(UserError, match=r"unknown feature of texts in captioned 'x'; .*captions"):
        open_source("captioned?captions=x", coco, captions=NEEDED)
    with pytest.raises(UserError, match="no features of type class label"):
        open_source("captioned", coco)
    # Which records have none is found when they are read.
    source, cfg = Tokenized(found, Bytes()), DataConfig(batch_size=3, transform=PLAIN)
    none = pytest.raises(DataError, match=r"captioned\[train\] record 1: it has no caption")
    with train_batches(source, cfg, views=VIEWS, fields=FIELDS, seed=0) as batches, none:
        next(batches)
    cfg.max_broken = 1
    with train_batches(source, cfg, views=VIEWS, fields=FIELDS, seed=0) as batches:
        batch = next(batches)
    (row,) = np.flatnonzero(batch["broken"] >= 0)
    assert (batch["broken"][row], text_of(batch["tokens"][row])) == (1, "c\u00e9")


def test_no_captions_where_they_are_needed(tmp_path: Path, tfds_dir: Path) -> None:
    (tmp_path / "a.png").write_bytes(tiny("a"))
    (tmp_path / "mine.csv").write_text("path,label,Alt\na.png,1,x\n")
    (tmp_path / "empty.csv").write_text("path,caption\na.png,\n")
    tar = write_tar(tmp_path / "0.tar", {"a.jpg": b"", "a.alt": b"x", "a.json": b'{"b": 3}'})
    parquet = write_parquet(tmp_path, alt=["x"], n=[1])
    columns = r"\(captions, caption, text, sentences"
    for name, message in (
        (
            f"{tar}",
            r"has no caption KEY.txt, nor in KEY.json by 'captions', 'caption', 'text', "
            r"'sentences'; there are KEY.jpg, KEY.alt, 'b', KEY.json; choose one by the end of the "
            r"name: \?captions=FIELD$",
        ),
        (f"{tar}?captions=c", "has no caption KEY.c, nor in KEY.json by 'c'; there are KEY.jpg, "),
        (
            parquet,
            rf"no column of captions {columns}\); there are image, alt, n; .*: \?captions=alt$",
        ),
        (f"{parquet}?captions=n", "unknown column of captions in .* 'n'; valid: alt"),
        (
            f"{tmp_path}/mine.csv",
            rf"no column of captions {columns}, title\); there are path, label, alt; ",
        ),
        (f"{tmp_path}/mine.csv?captions=b", "no column 'b'; there are path, label, alt; "),
        (
            f"{tmp_path}/mine.csv?label=b",
            r"mine.csv is a table: it has no \?label=; rename its columns",
        ),
        (f"{tmp_path}/empty.csv", "all captions of the column caption are empty"),
        (
            f"folder:{tmp_path}",
            "has no captions; csv:, tar:, parquet:, hf: and TFDS's datasets may",
        ),
        ("digits", r"digits.* has no captions; csv:"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            open_source(
                name, str(tfds_dir), "train" if name == "digits" else "whole", captions=NEEDED
            )
        assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match="has no captions, or was opened without"):
        Tokenized(open_source(f"folder:{tmp_path}", split="whole"), Bytes())


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """Six images with one to six captions each, "0 0", "1 0", "1 1", ..."""
    rows = ["path,captions"]
    for i in range(6):
        (tmp_path / f"{i}.png").write_bytes(tiny(f"{i}"))
        texts = json.dumps([f"{i} {k}" for k in range(i + 1)]).replace('"', '""')
        rows.append(f'{i}.png,"{texts}"')
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    return opened(f"csv:{tmp_path}/mine.csv")


def stream(source: Any, start: int, count: int, seed: int = 3, **settings: Any) -> list[Any]:
    transform = settings.pop("transform", PLAIN)
    rows = settings.pop("rows", None)
    cfg = DataConfig(batch_size=4, transform=transform, **settings)
    views = one_view(transform, (2, 2), 3)
    more = {"seed": seed, "start_step": start, "rows": rows}
    with train_batches(
        Tokenized(source, Bytes()), cfg, views=views, fields=FIELDS, **more
    ) as found:
        return [next(found) for _ in range(count)]


def test_a_caption_is_drawn_by_seed_and_position_alone(source) -> None:
    whole = stream(source, 0, 60)
    for step, batch in enumerate(whole):
        assert {key: (batch[key].shape, batch[key].dtype) for key in FIELDS} == {
            "tokens": ((4, 8), np.int32),
            "caption_id": ((4,), np.int32),
            "cut": ((4,), np.int32),
        }
        for row, index in enumerate(batch["index"].tolist()):
            share = ExampleRng(3, 1 << 32)(4 * step + row).random()
            text = f"{index} {int(share * (index + 1))}"
            assert text_of(batch["tokens"][row]) == text
            assert batch["caption_id"][row] == captions.caption_id(text)
    drawn = {text_of(row) for batch in whole for row in batch["tokens"]}
    assert len(drawn) == 21  # each of them, in 240 draws
    # From another start, by other threads, with other draws of the image, for some of the rows.
    for other in (
        stream(source, 50, 10),
        stream(source, 50, 10, num_threads=3),
        stream(source, 50, 10, transform=TransformConfig(crop=Crop.INCEPTION, flip=True)),
        stream(source, 50, 10, rows=np.array([1, 3])),
    ):
        for one, two in zip(whole[50:], other, strict=True):
            rows = [1, 3] if len(two["index"]) == 2 else slice(None)
            for key in FIELDS:
                np.testing.assert_array_equal(one[key][rows], two[key])
    assert any(
        (one["tokens"] != two["tokens"]).any()
        for one, two in zip(whole[:9], stream(source, 0, 9, seed=4), strict=True)
    )


def test_an_evaluation_has_the_first_caption_and_all_of_them(source) -> None:
    short = pickle.loads(pickle.dumps(Tokenized(source, Bytes(2))))  # as for worker processes
    with eval_batches(short, VIEWS, fields=FIELDS, batch_size=4) as batches:
        one, two = batches
    assert [text_of(row) for row in one["tokens"]] == ["0 ", "1 ", "2 ", "3 "]
    assert one["cut"].tolist() == [1, 1, 1, 1]
    assert two["cut"].tolist() == [1, 1, 0, 0]
    assert two["tokens"][2:].tolist() == [[0, 0], [0, 0]]  # padding
    assert all_captions(short)[2] == ("2 0", "2 1", "2 2")
    example = short.read(2)
    assert {name: example[name].shape for name in FIELDS} == {
        name: short.spec[name].shape for name in FIELDS
    }
    cached = Tokenized(
        open_source(
            source.name.removesuffix("[whole]"), split="whole", captions=NEEDED, cache=True
        ),
        Bytes(),
    )
    assert all_captions(cached) == all_captions(source)


def test_what_asks_for_no_tokens_gets_what_it_got(source) -> None:
    cfg = DataConfig(batch_size=4, transform=PLAIN)
    with train_batches(source, cfg, views=VIEWS, fields=(), seed=0) as batches:
        plain = next(batches)
    with train_batches(Tokenized(source, Bytes()), cfg, views=VIEWS, fields=(), seed=0) as batches:
        again = next(batches)
    assert plain.keys() == again.keys() == {"image", "index", "broken", "reason"}
    np.testing.assert_array_equal(plain["image"], again["image"])
