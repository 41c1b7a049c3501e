# SPDX-License-Identifier: Apache-2.0
"""The package in Python: models, runs and weights by a few names, and mistakes about arguments."""

import asyncio
import io
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from PIL import Image

import vit_jax
from tests.refusals import refused_by
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


CALLS: dict[str, Callable[[Any, Any], Any]] = {
    "call": lambda model, images: model(images),
    "features": lambda model, images: model.features(images),
    "output": lambda model, images: model.output(images).tokens,
    "intermediates": lambda model, images: model.intermediates(images)[0],
    "apply": lambda model, images: model.apply(model.variables, images).logits,
    "normalize": lambda model, images: vit_jax.normalize(images, model),
    "predict": lambda model, images: [answer[0] for answer in model.predict(images, top=1)],
    "preprocess": lambda model, images: model.preprocess(images[0]),
}


@pytest.mark.parametrize("name", CALLS)
def test_pixels_of_any_dtype_are_right_or_refused(model: vit_jax.Model, name: str) -> None:
    call = CALLS[name]
    right = call(model, IMAGES)
    for kind in (np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64):
        for images in (IMAGES.astype(kind), jnp.asarray(IMAGES.astype(kind))):
            assert np.array_equal(call(model, images), right), kind
    for kind in (np.float16, np.float32, np.float64, jnp.bfloat16):  # of 0 to 255, 0 to 1, dark
        for images in (IMAGES, IMAGES / 255, IMAGES // 128, IMAGES / 255.0 * 1000 - 500):
            fails(lambda images=images, kind=kind: call(model, images.astype(kind)))
    for kind in (bool, np.int8, np.complex64):
        fails(lambda kind=kind: call(model, IMAGES.astype(kind)))
    for images in (IMAGES.astype(np.int64) - 1, IMAGES.astype(np.uint16) * 257):
        fails(lambda images=images: call(model, images))


def test_what_takes_pixels_alone_refuses_others(
    model: vit_jax.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    look, predict = vit_jax.make_saliency(model.trained), vit_jax.make_predict(model.trained)
    for images in (IMAGES.astype(np.int64), IMAGES / 255, IMAGES.astype(np.float32)):
        assert "a map is made of uint8 pixels" in fails(lambda images=images: look(images))
        told = fails(lambda images=images: predict(model.variables, {"image": images}))
        assert "a forward takes uint8 pixels" in told


def test_normalize_is_what_a_call_does(model: vit_jax.Model) -> None:
    normal = vit_jax.normalize(IMAGES, model)
    np.testing.assert_allclose(normal, IMAGES / 127.5 - 1, atol=1e-6)
    logits = model.module.apply(model.variables, normal).logits
    np.testing.assert_allclose(model(IMAGES), logits, atol=1e-5)
    np.testing.assert_allclose(model(normal), logits, atol=1e-5)
    assert "normalize takes integers" in fails(lambda: vit_jax.normalize(normal, model))
    fails(lambda: model(IMAGES, normalised=True), "inference.units.as_input", "normalised")
    dino = vit_jax.create_model("vit_small_patch16_224.dino", depth=1, image_size=32)
    white = vit_jax.normalize(np.full((1, 32, 32, 3), 255, np.uint8), dino)
    np.testing.assert_allclose(white[0, 0, 0], [2.2489, 2.4286, 2.64], atol=1e-4)


def test_gradients_go_through_apply(model: vit_jax.Model) -> None:
    labels, normal = jnp.array([3, 5]), vit_jax.normalize(IMAGES, model)

    def loss(logits: jax.Array) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    def of_params(params: Any, images: Any) -> jax.Array:
        return loss(model.apply({**model.variables, "params": params}, images).logits)

    def by_hand(params: Any, images: Any) -> jax.Array:
        return loss(model.module.apply({"params": params}, images).logits)

    grads = jax.grad(of_params)(model.params, IMAGES)
    by_params, by_images = jax.grad(by_hand, (0, 1))(model.params, normal)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), grads, by_params)
    assert all(float(abs(leaf).max()) > 0 for leaf in jax.tree.leaves(grads["head"]))
    found = jax.jit(jax.grad(of_params, 1))(model.params, normal)
    np.testing.assert_allclose(found, by_images, atol=1e-5)
    assert float(abs(found).max()) > 0
    assert "give {**model.variables" in fails(lambda: model.apply(model.params, IMAGES))


def test_timms_names_are_known() -> None:
    small = {"depth": 1, "image_size": 32}
    model = vit_jax.create_model("vit_tiny_patch16_224.augreg_in21k", **small)
    assert model.config == models.variant("vit_ti16", gelu="erf", num_classes=21_843, **small)
    assert model.trained.mean == (0.5, 0.5, 0.5)
    assert (model.trained.transform.crop_ratio, model.trained.transform.crop) == (0.9, "center")
    same = vit_jax.create_model("timm/vit_tiny_patch16_224", num_classes=10, seed=0, **small)
    assert same.config == models.variant("vit_ti16", gelu="erf", num_classes=10, **small)
    assert vit_jax.create_model("mixer_b16_224", depth=1).config.gelu == "tanh"  # our variant's
    create = vit_jax.create_model
    assert "did you mean 'vit_base_patch16_224" in fails(lambda: create("vit_base_patch16_225"))
    code = "weights.published.timm_config.by_name"
    wrong = fails(lambda: create("vit_base_patch16_224.augreg_in22k"), code)
    assert "'vit_base_patch16_224.augreg_in21k'" in wrong
    for value in (True, False):
        told = fails(lambda value=value: create("vit_base_patch16_224", pretrained=value))
        assert "weights='hub:timm/vit_base_patch16_224.augreg2_in21k_ft_in1k'" in told
        assert "'hub:USER/NAME'" in fails(lambda value=value: create("vit_b16", pretrained=value))
    assert "write hub:timm/x" in fails(lambda: create("hf-hub:timm/x"))


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


def fails(call: Callable[[], Any], code: str = "", field: str | None = None) -> str:
    """Return how a call is refused, by `code` where that is of another file."""
    with refused_by(code, field) if code else pytest.raises(UserError) as refused:
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
    fails(lambda: create("vit_s166"), "models.variant")
    fails(lambda: create("vit_s16", img_size=32), "models.with_fields")
    assert "model=VARIANT" in fails(lambda: load(file), "inference.trained.describe")
    assert "give num_classes" in fails(lambda: create("vit_mu16", weights=file, **small))
    assert "(B, 32, 32, 1)" in fails(lambda: model(IMAGES[:, :16]), "inference.units.as_input")
    headless = create("vit_mu16", num_classes=0, **small)
    assert "the model has no head" in fails(lambda: headless(IMAGES))
    assert "the model has no head" in fails(lambda: headless.predict(IMAGES))
    assert "3 layers, 0 to 2" in fails(lambda: model.intermediates(IMAGES, [3]))
    assert "3 layers, 0 to 2" in fails(lambda: model.intermediates(IMAGES, 4))
    assert "no image of a known format" in fails(lambda: model.preprocess(b"nothing"))
    fails(lambda: model.save(file), "storage.files.check_file", "file")
    get = vit_jax.get_config
    fails(lambda: get("vit_mu_digit"), "settings.config_files.find")
    lacking = fails(lambda: get("vit_mu_digits", {"optim.lrr": 1}), "settings.names.check_path")
    assert " optim.lrr;" in lacking
    cfg = get("vit_mu_digits", {"data.classes": (1, 2)})
    told = fails(lambda: vit_jax.fit(cfg, tmp_path / "run"), "config.checks.check_classes")
    assert "model.num_classes=2" in told
    cfg.optim.lr = "fast"  # type: ignore[assignment]
    fails(lambda: vit_jax.fit(cfg, "x"), "settings.fields._wrong", "optim.lr")
    assert "overrides are for a config by name" in fails(lambda: vit_jax.fit(cfg, "x", {"seed": 1}))


def test_arguments_of_another_type_are_one_line(
    model: vit_jax.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users run it
    create, predict = vit_jax.create_model, model.predict
    for wrong in (5, None, b"vit_b16", [], Path("vit_b16"), vit_jax.Model):
        assert "names no model: give a variant" in fails(lambda wrong=wrong: create(wrong))
        fails(lambda wrong=wrong: vit_jax.load(wrong))
    for wrong in ("cat.jpg", Path("cat.jpg"), b"x", None, {}, ["cat.jpg"], object()):
        told = fails(lambda wrong=wrong: model(wrong), "inference.units.as_numpy")
        assert "(B, 32, 32, 1)" in told
    assert " ():" in fails(lambda: model(5), "inference.units.as_input")
    assert "images[None]" in fails(lambda: model(IMAGES[0]), "inference.units.as_input")
    kind = "settings.fields._wrong"
    fails(lambda: create("vit_mu16", seed="x"), kind, "seed")
    fails(lambda: predict(IMAGES, "a"), kind, "top")
    assert "top=0 must be at least 1" in fails(lambda: predict(IMAGES, 0))
    assert "batch_size=0 must be" in fails(lambda: predict(IMAGES, batch_size=0))
    assert "tta=True must be names of copies" in fails(lambda: predict(IMAGES, tta=True))
    assert predict(IMAGES, tta="flip") == predict(IMAGES, tta=("flip",))
    fails(lambda: model.intermediates(IMAGES, "last"), kind, "layers")
    assert len(model.intermediates(IMAGES, np.int64(2))) == 2
    assert "file=5 (int) must be a path" in fails(lambda: model.save(5))
    assert "workdir=5 (int) must be a path" in fails(lambda: vit_jax.fit("vit_mu_digits", 5))
    assert "trained=5 is no trained model" in fails(lambda: vit_jax.Model(5))
    assert "model=5 is no Model" in fails(lambda: vit_jax.normalize(IMAGES, 5))
    for wrong in (5, {5: 1}, "optim.lr=1"):
        assert "must be values by paths" in fails(
            lambda wrong=wrong: vit_jax.get_config("vit_mu_digits", wrong)
        )


def test_an_import_is_cheap() -> None:
    code = (
        "import sys, vit_jax; dir(vit_jax); vit_jax.UserError;"
        "print([m for m in ('jax', 'numpy', 'flax') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_a_run_by_name_trains_in_a_thread_and_beside_an_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"model.dim": 16, "model.depth": 1, "model.num_heads": 2, "model.mlp_dim": 32}
    small |= {"duration": "2 steps", "optim.warmup": "1 steps", "evals": {}, "mesh.data": 1}
    results: list[Any] = []

    def run(name: str) -> None:
        results.append(vit_jax.fit("vit_mu_digits", tmp_path / name, small))

    thread = threading.Thread(target=run, args=("thread",))
    thread.start()
    thread.join()

    async def cell() -> None:  # as a notebook's cell is run
        run("notebook")

    asyncio.run(cell())
    assert [(result.status, result.step) for result in results] == [(0, 2), (0, 2)]


@pytest.mark.slow
def test_the_page_runs_as_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / "python.md").read_text()
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert names["logits"].shape == (2, 10)
    assert names["features"].shape == (2, 32)
    assert [x.shape for x in names["last"]] == [(2, 4, 32)]
    assert jax.tree.structure(names["grads"]) == jax.tree.structure(names["model"].params)
    assert names["pull"].shape == (2, 32, 32, 1)
    assert names["result"].status == 0
    assert names["result"].metrics["val/top1"] > 0.2
    assert names["answer"][0][0].probability > names["answer"][0][1].probability
    assert names["difference"] < 1e-5
    assert names["losses"][-1] < names["losses"][0]
    assert names["heat"].shape == (4, *names["trained"].trained.image_size)
    assert names["heat"].any(axis=(1, 2)).all()


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
