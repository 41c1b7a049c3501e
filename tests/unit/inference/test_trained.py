# SPDX-License-Identifier: Apache-2.0
"""A trained model is found, described and read, whatever it is."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from vit_jax import inference, models
from vit_jax.cli.parsing import model_options
from vit_jax.cli.parsing.options import flag
from vit_jax.data import Resize, imagenet
from vit_jax.errors import UserError
from vit_jax.inference.trained import with_model
from vit_jax.models.losses import Loss


def test_probabilities_are_those_of_the_loss() -> None:
    logits = np.asarray([[0.0, 2.0]], np.float32)
    alone = 1 / (1 + np.exp(-logits))
    together = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(inference.probabilities(logits, Loss.SOFTMAX), together, rtol=1e-6)
    for loss in (Loss.SIGMOID, Loss.BCE):
        np.testing.assert_allclose(inference.probabilities(logits, loss), alone, rtol=1e-6)


def test_a_file_needs_to_be_told_its_model() -> None:
    golden = Path(__file__).parents[2] / "golden"
    with pytest.raises(UserError, match="add model=VARIANT"):
        inference.load(str(golden / "google_mixer.weights.npz"))
    found = inference.describe("timm:x.safetensors", model=models.variant("vit_b16"))
    assert found.class_names[:2] == ("tench, Tinca tinca", "goldfish, Carassius auratus")
    assert len(found.class_names) == 1000
    cfg = models.variant("vit_b16", num_classes=3)
    assert inference.describe("x.npz", model=cfg).ref == "npz:x.npz"
    assert inference.describe("x.pth", model=cfg).class_names == ("class 0", "class 1", "class 2")
    with pytest.raises(UserError, match="no moving average"):
        inference.describe("x.npz", model=cfg, ema=True)
    with pytest.raises(UserError, match="neither a run's directory nor a file of weights"):
        inference.describe("runs/none", model=cfg)


def test_what_follows_from_the_model_follows_its_fields(tmp_path: Path) -> None:
    model = models.variant("deit_ti16", depth=1, dim=8, num_heads=2, mlp_dim=8)
    found = inference.describe("x.pth", model=model)
    fewer = dataclasses.replace(model, num_classes=3, channels=1, image_size=(384, 384))
    changed = with_model(found, fewer)
    assert changed == inference.describe("x.pth", model=fewer)
    assert inference.changes(changed) == []  # nobody knows a file's own
    assert changed.class_names == ("class 0", "class 1", "class 2")
    assert (len(changed.mean), changed.transform.crop_ratio) == (1, 1.0)
    told = ["--from=x.pth", "--model=deit_ti16", "--model.image_size=384"]
    same = read("--from=x.pth", "--model=deit_ti16_384")[0]
    assert read(*told)[0].transform == same.transform
    found, _ = read(*told, "--transform.resize=area")
    assert (found.transform.crop_ratio, found.transform.resize) == (1.0, Resize.AREA)


def test_imagenet_has_its_classes_in_order() -> None:
    names = imagenet.names_by_synset()
    assert len(names) == imagenet.NUM_CLASSES
    assert list(names) == sorted(names)
    assert imagenet.readable(["n02123045", "other"]) == ("tabby, tabby cat", "other")


@dataclasses.dataclass(kw_only=True)
class Flags(model_options.ModelOptions):
    others: tuple[str, ...] = flag((), "other arguments", "[OTHERS ...]")


def read(*argv: str) -> tuple[inference.Trained, list[str]]:
    given, found = model_options.read(Flags, ["verb", *argv])
    return found, list(given.others)
