# SPDX-License-Identifier: Apache-2.0
"""`visualize --attention` and `--weights` draw what a trained model's attention and weights are."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.unit.models.tiny import TINY, shrink
from tests.unit.weights import runs
from vit_jax import models
from vit_jax.cli.visualize import main
from vit_jax.data import TransformConfig
from vit_jax.errors import UserError
from vit_jax.figures.contact_sheet import Tile, colors, spread
from vit_jax.inference.trained import Trained
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.visual import attention_sheets, weight_sheets
from vit_jax.visual.attention_sheets import Choice, chosen

CONVIT = shrink(models.variant("convit_ti", patch=(4, 4)), image_size=(8, 8), local_up_to_layer=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    runs.save(place, CONVIT, {1: 0.9})
    return place


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("photos")
    for folder in ("a", "b"):
        (place / folder).mkdir()
        Image.fromarray(load_sample_image("china.jpg")[:90, :60]).save(place / folder / "x.jpg")
    return place


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[list[list[Tile]]]:
    """The rows of every sheet, in the order of drawing."""
    seen: list[list[list[Tile]]] = []

    def render(rows: list[list[Tile]], title: str) -> bytes:
        seen.append(rows)
        return b"png"

    for sheets in (attention_sheets, weight_sheets):
        monkeypatch.setattr(sheets, "render", render)
    return seen


def test_a_sheet_an_image_and_a_plot_of_all(run, photos, tmp_path, capsys):
    out = tmp_path / "new"
    status = main(
        ["visualize", "--attention", f"--from={run}", str(photos), f"--out={out}", "--heads=1"]
    )
    assert status == 0
    names = ["x_attention.png", "x_2_attention.png", "attention_distance.png"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    assert sorted(path.name for path in out.iterdir()) == sorted(names)
    sheet = Image.open(out / "x_attention.png")
    assert sheet.size[0] == 4 * 332 + 12  # the first row: image, overlay, map, legend
    assert Image.open(out / names[2]).size == (960, 600)


def test_images_come_one_by_one_and_a_broken_one_is_skipped(
    run, photos, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(attention_sheets, "render", lambda *_: b"png")
    inspected = []
    make = attention_sheets.make_inspection

    def make_inspection(trained):
        inspect = make(trained)
        return lambda image: inspected.append(list(tmp_path.rglob("*.png"))) or inspect(image)

    monkeypatch.setattr(attention_sheets, "make_inspection", make_inspection)
    distances = iter((np.asarray([1.0, 2.0]), np.asarray([2.0, 6.0])))
    monkeypatch.setattr(attention_sheets, "_distances", lambda _: {0: next(distances)})
    drawn = []

    def draw(mean, title):
        drawn.append((mean, title))
        return b"png"

    monkeypatch.setattr(attention_sheets, "_draw_distances", draw)
    files = [str(photos / "a/x.jpg"), __file__, str(photos / "b/x.jpg")]
    assert main(["visualize", "--attention", f"--from={run}", *files, "--out=~/maps"]) == 1
    told = capsys.readouterr()
    names = ["x_attention.png", "x_2_attention.png", "attention_distance.png"]
    assert told.out.splitlines() == [str(tmp_path / "maps" / name) for name in names]
    (line,) = told.err.splitlines()
    assert line.startswith(f"skipped {__file__}: no image of a known format")
    assert list(map(len, inspected)) == [0, 1]  # the first is drawn before the second is seen
    ((mean, title),) = drawn
    np.testing.assert_array_equal(mean[0], [1.5, 4.0])
    assert title.endswith("2 images")

    assert main(["visualize", "--attention", f"--from={run}", __file__, "--out=~/new"]) == 1
    assert not (tmp_path / "new").exists()


def test_the_weights_of_a_convit(run, tmp_path, drawn, capsys):
    assert main(["visualize", f"--from={run}", "--weights", f"--out={tmp_path}"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = ["patch_filters.png", "positions.png", "gates.png"]
    assert lines[:3] == [str(tmp_path / name) for name in names]
    assert lines[3].startswith("no relative_bias.png: the model has no relative position bias")
    params = runs.make_state(CONVIT, 1).params

    similar = attention_of_positions(np.asarray(params["pos_embed"])[0])
    tiles = [tile for row in drawn[1] for tile in row]
    assert [tile.caption for tile in tiles][1:3] == ["row 0, column 1", "row 1, column 0"]
    np.testing.assert_array_equal(tiles[2].image, colors(spread(similar))[2].reshape(2, 2, 3))

    attn = params["local_blocks"]["attn"]
    (row,) = drawn[2]
    gate = 1 / (1 + np.exp(-float(attn["gating_param"][0, 1])))
    assert row[1].caption.splitlines()[:2] == ["layer 0 head 1", f"gate {gate:.2f}"]
    # The centre of 2 x 2 is the last patch; from it the others lie up and left.
    offsets = np.asarray([[-1, -1, 2], [0, -1, 1], [-1, 0, 1], [0, 0, 0]])
    logits = offsets @ np.asarray(attn["pos_proj"]["kernel"][0, :, 1])
    position = np.exp(logits) / np.exp(logits).sum()
    expected = colors(spread(position.reshape(2, 2)))
    assert np.abs(row[1].image.astype(int) - expected).max() <= 1


def test_positions_by_row_and_column_are_shown_as_their_table(tmp_path, drawn):
    cfg = dataclasses.replace(TINY["vit"], pos_embed=PosEmbed.LEARNED2D)
    found = trained(cfg)
    weight_sheets.write_sheets(found, tmp_path)
    params = found.variables["params"]
    x, y = (np.asarray(params[f"pos_embed_{axis}"])[0] for axis in "xy")
    table = np.stack([np.concatenate([x[c], y[r]]) for r in range(len(y)) for c in range(len(x))])
    similar = attention_of_positions(table)
    tiles = [tile for row in drawn[1] for tile in row]
    expected = colors(spread(similar))[1].reshape(*models.patch_grid(cfg, found.image_size), 3)
    assert tiles[1].caption == "row 0, column 1"
    np.testing.assert_array_equal(tiles[1].image, expected)


def attention_of_positions(table: np.ndarray) -> np.ndarray:
    unit = table / np.linalg.norm(table, axis=1, keepdims=True)
    return unit @ unit.T


def trained(cfg: models.ModelConfig) -> Trained:
    state = runs.make_state(cfg, 0)
    return Trained(
        ref="ckpt:tiny",
        source="ckpt:tiny",
        model=cfg,
        variables={"params": state.params, **state.model_state},
        mean=(0.5,),
        std=(0.5,),
        transform=TransformConfig(),
        class_names=("a", "b", "c"),
    )


def test_a_swin_shows_its_windows_and_its_biases_where_the_keys_lie(tmp_path, drawn):
    cfg = dataclasses.replace(TINY["swin"], image_size=(20, 16))
    found = trained(cfg)
    view = np.random.default_rng(0).integers(0, 256, (20, 16, 3), np.uint8)
    choice = Choice(layers=(1,))
    lines = list(attention_sheets.write_sheets(found, [("x.png", view)], tmp_path, choice))
    assert [Path(line).name for line in lines] == ["x_attention.png", "attention_distance.png"]
    (first, row) = drawn[0]
    captions = [tile.caption.splitlines()[0] for tile in row]
    assert captions[0] == "layer 1: stage 0 block 1"
    assert [caption.split(":")[0] for caption in captions[1:]] == ["head 0", "head 1"]
    assert len(first[1].caption.splitlines()) == 3
    for tile in row:  # 5 x 4 tokens of 64 pixels, windows from tokens 1 and 4, and 1
        line = (tile.image == attention_sheets._EDGE).all(axis=-1)
        assert np.flatnonzero(line.all(axis=1)).tolist() == [63, 64, 255, 256]
        assert np.flatnonzero(line.all(axis=0)).tolist() == [63, 64]

    lines = weight_sheets.write_sheets(found, tmp_path)
    assert lines[1].startswith("no positions.png: the model has no position embedding")
    tables = drawn[-1]
    assert [len(row) for row in tables] == [2, 2, 2]
    # Key (0, 0) for query (2, 2) of a 3 x 3 window: offset (2, 2), at the table's end.
    table = np.asarray(found.variables["params"]["stage0"]["block1"]["attn"]["rel_pos_bias"])[:, 1]
    np.testing.assert_array_equal(tables[1][1].image[0, 0], colors(spread(table)[None])[0, 24])


def test_a_network_without_attention_shows_its_class_activation_and_its_first_filters(
    tmp_path, drawn
):
    found = trained(dataclasses.replace(TINY["mixer"], image_size=(8, 12)))
    view = np.random.default_rng(0).integers(0, 256, (8, 12, 3), np.uint8)
    lines = list(attention_sheets.write_sheets(found, [("x", view)], tmp_path, Choice()))
    assert lines[1].startswith("no attention_distance.png: the model has no attention")
    ((image, over, plain),) = drawn[0]
    np.testing.assert_array_equal(image.image, view.repeat(26, 0).repeat(26, 1))
    assert plain.image.shape == (2, 3, 3)
    assert plain.caption == "class activation map, 2 x 3"
    assert over.image.shape == image.image.shape
    percents = [float(line.split(": ")[1][:-2]) for line in over.caption.splitlines()]
    assert percents == sorted(percents, reverse=True)
    with pytest.raises(UserError, match="has no attention; drop --layers and --heads"):
        chosen([], Choice(heads=(0,)))

    weight_sheets.write_sheets(trained(TINY["hybrid"]), tmp_path)
    kernel = np.asarray(
        trained(TINY["hybrid"]).variables["params"]["backbone"]["stem"]["conv"]["kernel"]
    )
    tile = drawn[1][0][3]
    assert tile.caption == "3"
    scale = np.abs(kernel[..., 3]).max()
    np.testing.assert_allclose(tile.image, 127.5 * (1 + kernel[..., 3] / scale), atol=0.51)


ERRORS = {
    "no mode": (
        [],
        "add one of: --augmentations, --attention, --similarity, --reconstruct, --pixels, "
        "--weights",
    ),
    "no model": (["--attention", "x.jpg"], "which model? add --from"),
    "no image": (["--attention", "--from={run}"], "which images? name files"),
    "no such image": (["--attention", "--from={run}", "no.jpg"], "no.jpg: no such file"),
    "flag of --augmentations": (["--attention", "--from={run}", "--count=3"], "unknown flag"),
    "word": (["--attention", "--from={run}", "x", "--heads=some"], "--heads=some must be numbers"),
    "none": (["--attention", "--from={run}", "x", "--layers=none"], "such as 0,3, or all"),
    "images of weights": (["--weights", "--from={run}", "x.jpg"], "unexpected argument 'x.jpg'"),
    "heads of weights": (["--weights", "--from={run}", "--heads=0"], "unknown flag '--heads'"),
}


@pytest.mark.parametrize("case", ERRORS)
def test_a_mistake_is_one_line(case, run, tmp_path, capsys):
    args, expected = ERRORS[case]
    words = [word.format(run=run) for word in args]
    assert main(["visualize", *words, f"--out={tmp_path}/new"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert expected in line
    assert not (tmp_path / "new").exists()
