# SPDX-License-Identifier: Apache-2.0
"""Patches of a small trained network segment drawn shapes, from the command line and as files."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image

import vit_jax
from tests.shapes import NAMES, write_shapes
from vit_jax import models
from vit_jax.__main__ import main as verb_main
from vit_jax.data import Resize
from vit_jax.data.images import ops
from vit_jax.data.sources.dense.masks import open_masks, pixels_of

FIELDS: dict[str, Any] = {"image_size": 32, "patch": 4, "depth": 2, "num_classes": 3}


def write_weights(folder: Path) -> Path:
    """Train a network to tell which shape an image shows; returns its file."""
    model = vit_jax.create_model("vit_mu16", **FIELDS, zero_head=False)
    source, module = open_masks(str(folder), "train"), models.create(model.config)
    pairs = [pixels_of(source, index, 3) for index in range(len(source))]
    pixels = np.stack([ops.resize(image, (32, 32), Resize.BICUBIC) for image, _ in pairs])
    labels = jnp.asarray([np.unique(mask)[1] - 1 for _, mask in pairs])
    normal, optimizer = jnp.asarray(pixels / 127.5 - 1, jnp.float32), optax.adam(3e-3)

    def loss(params: Any) -> jax.Array:
        output: Any = module.apply({"params": params}, normal)
        logits = output.logits
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    @jax.jit
    def train(params: Any) -> Any:
        def step(carry: Any, _: None) -> Any:
            params, state = carry
            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradient, state)
            return (optax.apply_updates(params, updates), state), value

        (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), None, 60)
        return params, losses

    params, losses = train(model.params)
    assert losses[-1] < 0.5 * losses[0]
    trained = dataclasses.replace(model.trained, variables={"params": params})
    file = folder / "shapes.safetensors"
    vit_jax.Model(trained).save(file)
    return file


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = write_shapes(tmp_path_factory.mktemp("dense") / "shapes", {"train": 24, "val": 9})
    write_weights(root)
    return root


def probe(place: Path, *flags: str) -> int:
    fields = [f"--model.{name}={value}" for name, value in FIELDS.items()]
    model = [f"--from=timm:{place}/shapes.safetensors", "--model=vit_mu16", *fields]
    data = ["--mean=0.5", "--std=0.5", f"--dataset=masks:{place}", "--test_split=val"]
    return verb_main(["vit_jax", "probe", *model, *data, *flags])


def test_patches_segment_better_than_a_constant(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = (f"--out={tmp_path}/r.json", f"--plot={tmp_path}/r.png")
    assert probe(place, "--steps=300", "--lr=1e-2", "--k=5,20", *files) == 0
    out = capsys.readouterr().out
    tree = json.loads((tmp_path / "r.json").read_text())
    assert (tree["num_train"], tree["num_test"], tree["num_classes"]) == (24, 9, 4)
    constant, *probes = tree["results"]
    assert [each["method"] for each in probes] == ["patch_knn", "patch_knn", "linear_head"]
    assert [each.get("k") for each in probes] == [5, 20, None]
    # Most pixels are texture: one class of four is found, and the others are missed.
    assert (constant["method"], constant["class"]) == ("constant", 0)
    assert constant["miou"] == constant["iou"]["texture"] / 4
    assert constant["pixel_accuracy"] == constant["iou"]["texture"] > 0.5
    for each in probes:
        assert each["miou"] > constant["miou"] + 0.2, each
        assert each["pixel_accuracy"] > constant["pixel_accuracy"] + 0.05, each
        assert list(each["iou"]) == list(NAMES)
        assert f"{each['miou']:.2%}" in out
    assert "8 x 8 patches an image" in out
    assert "4 classes in 2 splits (train 24, val 9); all 33 images used" in out
    with Image.open(tmp_path / "r.png") as picture:
        assert picture.format == "PNG"
        # Six images; columns of the image, its mask and three predictions.
        assert picture.width > 5 * 40
        assert picture.height > 6 * 40


def test_layers_are_joined_and_chosen(place: Path, tmp_path: Path) -> None:
    few = ("--methods=patch_knn", "--k=3")
    assert probe(place, *few, "--layers=0,-1", "--norm", f"--out={tmp_path}/r.json") == 0
    tree = json.loads((tmp_path / "r.json").read_text())
    assert (tree["num_features"], tree["layers"]) == (64, [0, 1])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--methods=knn",), "unknown method for masks:DIR 'knn'"),
        (("--shots=3",), "--shots=(3,) has no effect on a dataset of masks:DIR"),
        (("--methods=patch_knn", "--steps=3"), "--steps=3 has no effect without linear_head"),
        (("--methods=linear_head", "--k=3"), "--k=(3,) has no effect without patch_knn"),
        (("--transform.crop=center",), "--transform.crop has no effect: images are resized"),
        (("--plot=HERE/r.jpg",), "--plot=HERE/r.jpg must end in .png"),
        (("--train_split=trian",), "did you mean 'train'?"),
        (("--layers=2",), "the ViT has 2 layers, 0 to 1"),
    ],
)
def test_mistakes_are_one_line(
    place: Path, flags: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert probe(place, *(flag.replace("HERE", str(place)) for flag in flags)) == 2
    *_, told = capsys.readouterr().err.splitlines()
    assert told.startswith("error: ")
    assert message.replace("HERE", str(place)) in told


def test_classes_beyond_those_that_are_named(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = place / "classes.txt"
    text = names.read_text()
    try:
        names.write_text("texture\ncircle\n")
        assert probe(place, "--methods=patch_knn") == 2
    finally:
        names.write_text(text)
    assert "have pixels of class 3 (first: " in capsys.readouterr().err
