# SPDX-License-Identifier: Apache-2.0
"""What a stranger's names can do where a person reads them."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.faults.strangers.given import EVIL, command, manifest_line, refused
from vit_jax.export import card as model_card
from vit_jax.export import folder as folder_lib


def test_text_in_a_terminal(
    run: Path, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    image = next((run.parent / "data").rglob("0.png"))
    status, out, err = command(capsys, "predict", f"--from={run}", image)
    assert status == 0
    assert "\\x1b[31m" in out
    for text in (out, err):
        assert all(line.isprintable() for line in text.splitlines())
    status, out, err = command(capsys, "evaluate", f"--from={run}", "--split=val", "--out=report")
    assert status == 0, err
    assert all(line.isprintable() for line in (out + err).splitlines())
    # In a table for programs names stay as they are, but where a person sees it.
    with monkeypatch.context() as patch:
        patch.setattr(sys.stdout, "isatty", lambda: True)
        status, out, _ = command(capsys, "predict", f"--from={run}", "--format=csv", image)
    assert (status, "\x1b" in out, "\\x1b[31m" in out) == (0, False, True)
    (home / "mine" / "\x1b[2Jx.png").write_bytes(b"no image")
    status, out, err = command(capsys, "predict", f"--from={run}", home / "mine")
    assert (status, "\x1b" in out + err) == (1, False)
    assert "\\x1b" in refused(capsys, "predict", f"--from={run}", "\x1b[2J")
    assert "\\x1b" in refused(capsys, "\x1b[2J")


def test_text_in_a_report(run: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    image = next((run.parent / "data").rglob("0.png"))
    files = [home / "mine" / "=1+1.png", home / "mine" / "@x.png"]
    for file in files:
        file.write_bytes(image.read_bytes())
    words = ["predict", f"--from={run}", "--format=csv", "=1+1.png", "@x.png"]
    status, out, _ = command(capsys, *words)
    assert status == 0
    assert "'=1+1.png," in out
    assert "'@x.png," in out
    assert not re.search(r"(?m)(^|,)\"?[=@]", out)


def test_text_in_a_page(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "<img src=x onerror=alert(1)>\u202e</script><script>alert(2)</script>"
    name = "<script>alert(3)<"
    sweep = home / "sweep"
    lines = []
    for i, run in enumerate((name, "plain")):
        place = sweep / "runs" / run
        place.mkdir(parents=True)
        row = {"step": 5, "val/loss": 1.0 + i, "train/loss": 1.0}
        (place / "metrics.jsonl").write_text(json.dumps(row) + "\n")
        (place / "finished.json").write_text('{"step": 5}')
        lines.append(manifest_line(run=run, name=f"{evil}\x1b[31m{i}", overrides={"optim.lr": i}))
    (sweep / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    status, out, err = command(capsys, "sweep", "report", sweep, f"--title={evil}")
    assert status == 0, err
    assert "\x1b" not in out
    assert "\u202e" not in out
    page = (sweep / "report.html").read_text()
    assert page.count("<script") == 2  # the page's own
    assert "<img src=x" not in page
    assert not set("\x1b\u202e") & set(page)
    status, out, _ = command(capsys, "sweep", "status", sweep, "--once")
    assert (status, "\x1b" in out, "\\x1b" in out) == (0, False, True)


def test_text_in_a_card(run: Path, home: Path) -> None:
    from vit_jax.inference.trained import load

    name = "[x](http://y)<b>|`$"
    trained = load(str(run))
    object.__setattr__(trained, "metrics", {f"{name}\n# head": 0.5})
    description = {
        "dtype": "float32",
        "vit_jax": "0",
        "config": {"data": {"name": f"`{name}\n# x"}},
    }
    change = folder_lib.Change("images", 1, 0.0, 0.0, 1)
    text = model_card.card(trained, "timm", change, description, name)
    outside_code = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", text)
    assert "<b>" not in outside_code
    assert "](http://y)" not in outside_code
    assert "\n# head" not in text
    assert "\n# x" not in text


def test_text_in_a_picture(run: Path) -> None:
    """A "$" of a class is no formula, and a line break no line."""
    from vit_jax.evals.report import write_report

    names = ["$x$", "a$\\frac{", EVIL, "new\nline"]
    ids = np.arange(4)
    written = write_report(run.parent / "pictures", ids, ids[::-1].copy(), names, title="$\\frac{")
    assert "confusion.png" in written
    table = (run.parent / "pictures" / "per_class.csv").read_text()
    assert not re.search(r"(?m)^[=+@-]", table)
