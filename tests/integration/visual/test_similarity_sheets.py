# SPDX-License-Identifier: Apache-2.0
"""`visualize --similarity`: the patch that a text is about is the lightest."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import colour_pair
from tests.pairs_of_towers import folder
from tests.unit.demo import colors
from vit_jax.cli.visualize import main
from vit_jax.inference import image_text, trained
from vit_jax.visual import similarity_sheets


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return colour_pair.save_run(tmp_path_factory.mktemp("runs") / "pair")


def test_the_lightest_place_is_the_one_that_the_text_is_about(run):
    found, pair = image_text.read(trained.describe(str(run)))
    view = np.zeros((1, 32, 32, 3), np.uint8)
    view[0, :8, 24:, 0] = view[0, 16:24, 8:16, 2] = 255  # red above, blue below
    whole, places = similarity_sheets.make_vectors(found, pair)(view)
    assert places.shape == (1, 4, 4, 3)
    for word, place in (("red", (0, 3)), ("blue", (2, 1))):
        text = image_text.pairs.embed_texts(pair, [word])[0]
        heat = np.asarray(places)[0] @ text
        assert np.unravel_index(heat.argmax(), heat.shape) == place
        assert heat.max() > np.asarray(whole)[0] @ text


def test_an_image_of_one_patch_is_that_patch(tmp_path):
    published = folder("siglip", tmp_path / "siglip")  # it pools by attention
    model = vit_jax.load(f"hub:{published}", image_size=(8, 8))
    view = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), np.uint8)
    whole, places = similarity_sheets.make_vectors(model.trained, model.pair)(view)
    np.testing.assert_allclose(places[:, 0, 0], whole, atol=1e-6)
    np.testing.assert_allclose(model.encode_image(view), whole, atol=1e-6)


def test_a_sheet_for_each_image(run, tmp_path, capsys):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jpg").write_bytes(colors.photo(0))
    files = [str(tmp_path / f"{name}.jpg") for name in ("a", "b")]
    words = ["--similarity=a red\x1b[2J thing", f"--from={run}", f"--out={tmp_path / 'out'}"]
    assert main(["vit_jax visualize", *words, *files]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [str(tmp_path / f"out/{name}_similarity.png") for name in ("a", "b")]
    with Image.open(lines[0]) as sheet:
        assert sheet.width > 3 * 160
    (tmp_path / "c.jpg").write_bytes(b"")
    words[0:1] = ["--similarity", "red"]
    assert main(["vit_jax visualize", *words, *files, str(tmp_path / "c.jpg")]) == 1


def test_what_is_wrong_is_one_line(run, tmp_path, capsys, subtests):
    no_texts = colors.save_run(tmp_path / "classes")
    (image := tmp_path / "a.jpg").write_bytes(colors.photo(0))
    cases = {
        "no text": (["--similarity=", f"--from={run}", str(image)], "which text?"),
        "blank": (["--similarity= ", f"--from={run}", str(image)], "an empty text"),
        "no image": (["--similarity=a", f"--from={run}"], "which images?"),
        "no tower": (["--similarity=a", f"--from={no_texts}", str(image)], "knows no texts"),
        "two modes": (["--similarity=a", "--weights", f"--from={run}"], "what to show?"),
    }
    for name, (words, message) in cases.items():
        with subtests.test(name):
            assert main(["vit_jax visualize", *words]) == 2
            assert message in capsys.readouterr().err
