# SPDX-License-Identifier: Apache-2.0
"""The package in Python: models, runs and weights by a few names, and mistakes about arguments."""

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from vit_jax import models
from vit_jax.errors import UserError
from vit_jax.inference.forward import output_of

ROOT = Path(__file__).parents[2]
SMALL = {"image_size": 32, "channels": 1, "num_classes": 10, "zero_head": False}
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 1), np.uint8)


@pytest.fixture(scope="module")
def model() -> vit_jax.Model:
    return vit_jax.create_model("vit_mu16", depth=3, **SMALL)


def test_a_call_is_the_networks_own(model: vit_jax.Model) -> None:
    network = models.create(model.config)
    normal = IMAGES.astype(np.float32) / 127.5 - 1
    output = network.apply({"params": model.params}, jnp.asarray(normal))
    for images in (IMAGES, normal):
        np.testing.assert_allclose(model(images), output.logits, atol=1e-5)
        np.testing.assert_allclose(model.features(images), output.features, atol=1e-5)
        np.testing.assert_allclose(model.output(images).tokens, output.tokens, atol=1e-5)


def test_a_second_call_compiles_nothing(model: vit_jax.Model) -> None:
    model(IMAGES)
    before = output_of._cache_size()
    model(IMAGES)
    model.features(IMAGES)
    vit_jax.create_model("vit_mu16", depth=3, **SMALL)(IMAGES)
    assert output_of._cache_size() == before


def test_a_seed_decides_the_weights() -> None:
    one, same, other = (vit_jax.create_model("vit_mu16", seed=s, **SMALL) for s in (1, 1, 2))
    assert np.array_equal(one(IMAGES), same(IMAGES))
    assert not np.array_equal(one(IMAGES), other(IMAGES))


def test_what_layers_return(model: vit_jax.Model) -> None:
    every = model.intermediates(IMAGES)
    assert [x.shape for x in every] == [(2, 4, 32)] * 3
    last = model.intermediates(IMAGES, layers=1)
    assert np.array_equal(last[0], every[2])
    chosen = model.intermediates(IMAGES, layers=[-3, 1])
    assert np.array_equal(chosen, every[:2])
    (grid,) = model.intermediates(IMAGES, layers=[1], grid=True)
    assert np.array_equal(grid, np.reshape(every[1], (2, 2, 2, 32)))
    # The last layer's, normalised, is what the network returns.
    ((patches, prefix),) = model.intermediates(IMAGES, layers=[-1], norm=True, prefix=True)
    tokens = model.output(IMAGES).tokens
    np.testing.assert_allclose(np.concatenate([prefix, patches], 1), tokens, atol=1e-5)


def test_weights_go_out_and_come_in(model: vit_jax.Model, tmp_path: Path) -> None:
    file = tmp_path / "mu.safetensors"
    model.save(file)
    same = vit_jax.load(file, model="vit_mu16", depth=3, **SMALL)
    assert np.array_equal(same(IMAGES), model(IMAGES))
    fields = {"depth": 3, "image_size": 32, "channels": 1}
    other = vit_jax.create_model("vit_mu16", num_classes=4, weights=file, **fields)
    assert np.array_equal(other.features(IMAGES), model.features(IMAGES))
    assert other(IMAGES).shape == (2, 4)
    bare = vit_jax.create_model("vit_mu16", num_classes=0, weights=file, **fields)
    assert np.array_equal(bare.features(IMAGES), model.features(IMAGES))


def test_images_of_every_kind_are_one(model: vit_jax.Model) -> None:
    file = ROOT / "docs" / "images" / "digits" / "3.png"
    image = Image.open(file)
    pixels = np.asarray(image.convert("L"))[..., None]
    kinds = [file, str(file), file.read_bytes(), image, pixels]
    answers = model.predict(kinds, top=3)
    assert all(answer == answers[0] for answer in answers)
    assert model.predict(image, top=3) == answers[:1]
    both = model.predict(image, top=3, tta=("flip", "shift"))
    assert both != answers[:1]
    assert "unknown tta 'mirror'" in fails(lambda: model.predict(image, tta=("mirror",)))
    views = [model.preprocess(kind) for kind in kinds]
    assert all(np.array_equal(view, views[0]) for view in views)
    assert views[0].shape == (32, 32, 1)


def test_a_turned_and_a_transparent_picture() -> None:
    model = vit_jax.create_model("vit_mu16", image_size=32, num_classes=2)
    photo = Image.new("RGB", (64, 32), "black")
    photo.paste("red", (0, 0, 32, 32))
    exif = photo.getexif()
    exif[0x0112] = 6
    buffer = io.BytesIO()
    photo.save(buffer, "jpeg", exif=exif, quality=100)
    opened = Image.open(io.BytesIO(buffer.getvalue()))
    from_bytes = model.preprocess(buffer.getvalue()).astype(int)
    assert np.abs(model.preprocess(opened).astype(int) - from_bytes).max() <= 2  # two decoders
    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    assert (model.preprocess(clear) == 255).all()


def fails(call: Callable[[], Any]) -> str:
    with pytest.raises(UserError) as refused:
        call()
    text = str(refused.value)
    assert len(text.splitlines()) == 1
    assert not re.search(r"(^|\s)--\w", text), text  # of arguments, not of flags
    return text


def test_mistakes_speak_of_arguments(model: vit_jax.Model, tmp_path: Path) -> None:
    file = tmp_path / "mu.safetensors"
    model.save(file)
    create, load = vit_jax.create_model, vit_jax.load
    small = {"depth": 3, "image_size": 32, "channels": 1}
    assert "did you mean 'vit_s16'" in fails(lambda: create("vit_s166"))
    assert "did you mean 'image_size'" in fails(lambda: create("vit_s16", img_size=32))
    assert "add model=VARIANT" in fails(lambda: load(file))
    assert "give num_classes" in fails(lambda: create("vit_mu16", weights=file, **small))
    assert "the model takes (B, 32, 32, 1)" in fails(lambda: model(IMAGES[:, :16]))
    headless = create("vit_mu16", num_classes=0, **small)
    assert "the model has no head" in fails(lambda: headless(IMAGES))
    assert "the model has no head" in fails(lambda: headless.predict(IMAGES))
    assert "3 layers, 0 to 2" in fails(lambda: model.intermediates(IMAGES, [3]))
    assert "3 layers, 0 to 2" in fails(lambda: model.intermediates(IMAGES, 4))
    assert "no image of a known format" in fails(lambda: model.preprocess(b"nothing"))
    assert "is there already" in fails(lambda: model.save(file))
    get = vit_jax.get_config
    assert "did you mean 'vit_mu_digits'" in fails(lambda: get("vit_mu_digit"))
    lacking = fails(lambda: get("vit_mu_digits", {"optim.lrr": 1}))
    assert lacking == "unknown key optim.lrr; did you mean optim.lr?"
    cfg = get("vit_mu_digits", {"data.classes": (1, 2)})
    assert "set model.num_classes=2" in fails(lambda: vit_jax.fit(cfg, tmp_path / "run"))
    cfg.optim.lr = "fast"  # type: ignore[assignment]
    assert "optim.lr='fast' (str) must be a number" in fails(lambda: vit_jax.fit(cfg, "x"))
    assert "overrides are for a config by name" in fails(lambda: vit_jax.fit(cfg, "x", {"seed": 1}))
    with pytest.raises(AttributeError, match="it offers"):
        vit_jax.nonsense  # noqa: B018


@pytest.mark.slow
def test_the_page_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    text = (ROOT / "docs" / "python.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 10)
    assert names["features"].shape == (2, 32)
    assert [x.shape for x in names["last"]] == [(2, 4, 32)]
    assert names["result"].status == 0
    assert names["result"].metrics["val/top1"] > 0.2
    assert names["answer"][0][0].probability > names["answer"][0][1].probability
    assert names["difference"] < 1e-5


def test_timms_calls_have_their_counterparts() -> None:
    rows = re.findall(r"^\| `(.+)` \| (.+) \|$", (ROOT / "docs" / "from_timm.md").read_text(), re.M)
    assert len(rows) >= 20
    model = vit_jax.create_model("vit_mu16", **SMALL)
    for _, ours in rows:
        for name in re.findall(r"vit_jax\.([\w.]+)\(", ours):
            target: Any = vit_jax
            for part in name.split("."):
                target = getattr(target, part)
        for name in re.findall(r"\bmodel\.([\w.]+)", ours):
            target = model
            for part in name.split("."):
                target = getattr(target, part)
