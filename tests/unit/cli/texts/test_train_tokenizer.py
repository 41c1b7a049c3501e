# SPDX-License-Identifier: Apache-2.0
"""The captions that the verb reads, what it prints and writes; the rest is `text.training`'s."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vit_jax.cli.texts.train_tokenizer import main
from vit_jax.text import tokenizers

LINES = [f"A {color} cat, number {i}" for i in range(20) for color in ("red", "Blue")]


def run(*argv: object) -> int:
    return main(["vit_jax train-tokenizer", *map(str, argv)])


def test_lines_of_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions, out = tmp_path / "captions.txt", tmp_path / "words.json"
    captions.write_bytes(
        b"\xef\xbb\xbf" + "\n".join([*LINES, "", "word " * 70]).encode() + b"\n\xff\n"
    )
    assert run(captions, f"--out={out}", "--size=300", "--context=16") == 0
    found = tokenizers.load(out)
    assert (found.context, found.vocab_size) == (16, 300)
    said = capsys.readouterr().out
    assert said.startswith(f"{captions} is not UTF-8 throughout; what cannot be read is \ufffd\n")
    assert f"{captions}: 1 of 43 lines are empty\n42 captions, 42 different\n300 ids; " in said
    rows = [line.split() for line in said.split("---\n")[1].split("\n\n")[0].splitlines()]
    assert [row[:2] for row in rows] == [["16", "1"], ["32", "1"], ["64", "1"], ["77", "0"]]
    assert rows[0][2] == "2.4%"
    assert said.endswith(f"\nwrote {out}, digest {found.digest}\n")
    # The same captions once more, in another order: the same file.
    captions.write_text("\n".join([*LINES[::-1], *LINES, "word " * 70, "\ufffd"]))
    again = tmp_path / "again.json"
    assert run(captions, f"--out={again}", "--size=300", "--context=16") == 0
    assert again.read_bytes() == out.read_bytes()


def test_captions_of_a_datasets_training_split(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(tmp_path / "a.png")
    Image.fromarray(np.ones((8, 8, 3), np.uint8)).save(tmp_path / "b.png")
    table = tmp_path / "table.csv"
    table.write_text("path,caption,split\na.png,a red cat,train\nb.png,zebra,test\n")
    files = [tmp_path / f"{name}.json" for name in ("one", "two")]
    assert run(f"csv:{table}", f"--out={files[0]}", "--kind=unigram") == 0
    assert "\n1 captions, 1 different\n" in capsys.readouterr().out
    (tmp_path / "one.txt").write_text("a red cat\n")
    assert run(tmp_path / "one.txt", f"--out={files[1]}", "--kind=unigram") == 0
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_mistake_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests
) -> None:
    there, empty = tmp_path / "there.txt", tmp_path / "empty.txt"
    there.write_text("a cat\n")
    empty.write_text(" \n\n")
    out = f"--out={tmp_path / 'words.json'}"
    taken = tmp_path / "taken.json"
    taken.write_text("{}")
    for argv, why in (
        ((out,), "which captions? name a .txt file, csv:FILE"),
        ((there,), "--out=FILE.json says where to"),
        ((there, f"--out={tmp_path / 'words.model'}"), "must end in .json"),
        ((there, f"--out={taken}"), "is there already; choose another name, or add --force"),
        ((there, out, "--size=100"), "--size=100 must be"),
        ((there, out, "--context=1"), "--context=1 must be"),
        ((tmp_path / "gone.txt", out), "cannot read"),
        ((empty, out), "holds no caption"),
        (("digits", out), "has no captions"),
    ):
        with subtests.test(why):
            assert run(*argv) == 2
            said = capsys.readouterr().err
            assert why in said
            assert said.count("\n") == 1
    assert run(there, f"--out={taken}", "--force") == 0
