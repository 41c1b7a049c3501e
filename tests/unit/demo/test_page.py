# SPDX-License-Identifier: Apache-2.0
"""The demo page's HTML: what it says of a run, and that no name becomes markup."""

import base64
import dataclasses
import hashlib
import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.refusals import refused_by
from tests.unit.demo import colors
from vit_jax import inference, models
from vit_jax.demo import page
from vit_jax.inference.trained import Trained


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    place = tmp_path_factory.mktemp("runs") / "colors"
    return inference.load(str(colors.save_run(place)))


def opened(url: str) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))


def test_classes_of_one_name_are_told_apart() -> None:
    assert page._distinct(["crane", "dog", "crane"]) == ["crane (0)", "dog", "crane (2)"]


def test_what_the_page_says_of_a_run(trained: Trained) -> None:
    assert page.title(trained) == "ViT · step 1,234"
    known = models.variant("vit_b16_384", num_classes=3, drop_path_rate=0.1)
    assert page.title(dataclasses.replace(trained, model=known, step=None)) == "vit_b16"
    assert page.facts(trained).endswith("32x32 pixels · 3 classes")
    average = dataclasses.replace(trained, ema=True)
    assert page.facts(average).endswith("3 classes · moving average")
    for ref, name in (
        (trained.ref, "colors"),
        (f"{trained.ref}@best", "colors"),
        ("npz:dir/ViT-B_16.npz", "ViT-B_16.npz"),
    ):
        html = page.write(dataclasses.replace(trained, ref=ref), [], 1)
        assert f"<small>{name}</small>" in html


def test_an_example_is_read_as_evaluation_does(trained: Trained, tmp_path: Path) -> None:
    (file := tmp_path / "a \x1b[2J.jpg").write_bytes(colors.photo(0, orientation=6))
    example = page.read_example(trained, str(file))
    assert example.name == r"a \x1b[2J.jpg"
    np.testing.assert_array_equal(example.view, page.read_view(trained, file.read_bytes()))
    red = np.asarray(opened(example.picture))[..., 0]
    assert red.shape == (64, 64)
    assert red[:16, 48:].mean() > 200 > 20 > red[:16, :16].mean()  # turned as the camera was

    Image.new("RGB", (1000, 500)).save(file, "PNG")
    assert opened(page.read_example(trained, str(file)).picture).size == (448, 224)
    with refused_by("inference.images._said"):
        page.read_view(trained, colors.half_png())


def test_no_name_becomes_markup(trained: Trained) -> None:
    name = "\"><script>alert('1')</script>&$title\u202e.png"
    example = page.Example(name, np.zeros((32, 32, 3), np.uint8), "data:,")
    html = page.write(dataclasses.replace(trained, ref=f"npz:{name}"), [example], 1234)
    assert html.count("<script") == html.count("</script>") == 1
    assert "alert('1')" not in html
    assert "\u202e" not in html
    assert html.count("&amp;$title") == 3  # the small print, and the example
    assert "largest = 1234;" in html
    assert "$" not in html.replace("&amp;$title", "")


def test_examples_are_shown_where_there_are_any(trained: Trained) -> None:
    example = page.Example("a.png", np.zeros((32, 32, 3), np.uint8), "data:,")
    section = re.compile(r'<section id="examples"[^>]*>')
    assert "hidden" in section.search(page.write(trained, [], 1))[0]
    html = page.write(trained, [example], 1)
    assert "hidden" not in section.search(html)[0]
    assert 'data-example="0" title="a.png"' in html


def test_the_page_may_run_its_own_script_and_ask_no_other_host(trained: Trained) -> None:
    html = page.write(trained, [], 1)
    script = html.partition("<script>")[2].partition("</script>")[0].encode()
    policy = dict(rule.split(" ", 1) for rule in page.content_policy(html).split("; "))
    digest = base64.b64encode(hashlib.sha256(script).digest()).decode()
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    assert not re.search(r"(src|href)=\"?(https?:)?//|@import|url\(", html)


def test_the_answer_in_json() -> None:
    picture = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    reply = page.Reply([("red", 0.75), ("blue", 0.25)], picture)
    classes = [{"name": "red", "probability": 0.75}, {"name": "blue", "probability": 0.25}]
    assert reply._replace(overlay=None).as_json() == {"classes": classes}
    shown = reply.as_json()
    assert shown["classes"] == classes
    assert shown["overlay"].startswith("data:image/png;base64,")
    np.testing.assert_array_equal(np.asarray(opened(shown["overlay"])), picture)


def test_words_stand_on_the_page_of_a_model_that_takes_them(trained: Trained) -> None:
    field = re.compile(r'<input type="text" id="words"[^>]*>')
    with_classes, with_words = (page.write(trained, [], 9, takes_words=x) for x in (False, True))
    assert field.findall(with_classes)[0].endswith(" hidden>")
    assert not field.findall(with_words)[0].endswith(" hidden>")
    assert ">Classes</h2>" in with_classes
    assert ">Words</h2>" in with_words
    without = dataclasses.replace(trained, class_names=())
    assert "classes" not in page.facts(without)
