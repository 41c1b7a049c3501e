# SPDX-License-Identifier: Apache-2.0
"""A trained model is found, described and read, whatever it is."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import RANGE, refused_as, refused_by
from tests.unit.inference.test_trained import read
from tests.unit.weights import runs
from vit_jax import inference, models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, Resize, TransformConfig
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval
from vit_jax.inference.forward import make_apply
from vit_jax.inference.trained import with_model
from vit_jax.models import DType
from vit_jax.models.layers.attention import AttentionImpl
from vit_jax.models.losses import Loss

MODEL = models.variant(
    "vit_mu16", patch=(4, 4), image_size=(8, 12), channels=1, num_classes=3, dim=8, mlp_dim=16
)
NAMES = ["cat", "dog", "n01440764"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a run whose best checkpoint is that of its average, at step 1."""
    place = tmp_path_factory.mktemp("run")
    cfg = Config(model=MODEL, ema_decay=0.9)
    cfg.data.mean, cfg.data.std = (0.25,), (0.125,)
    cfg.objective.loss = Loss.SIGMOID
    cfg.evals = {"test": ClassifyEval(), "val": ClassifyEval(every="1 epoch")}
    cfg.evals["val"].transform = TransformConfig(crop=Crop.RESIZE, resize=Resize.AREA)
    cfg.checkpoint = CheckpointConfig(keep=9, keep_best=1, metric="val_ema/top1")
    metadata = {"config": config_json.to_json(cfg), "class_names": NAMES}
    checkpoints = Checkpointer(place / "checkpoints", cfg.checkpoint)
    for step, score in {1: 0.9, 2: 0.5}.items():
        state = runs.make_state(MODEL, step, with_ema=True)
        checkpoints.save(step, state, metadata=metadata, metrics={"val_ema/top1": score})
    checkpoints.wait()
    return place


def test_a_run_says_all_of_itself(run: Path) -> None:
    found = inference.load(str(run))
    assert (found.step, found.metrics, found.ema) == (1, {"val_ema/top1": 0.9}, True)
    assert (found.mean, found.std, found.loss) == ((0.25,), (0.125,), Loss.SIGMOID)
    assert found.class_names == ("cat", "dog", "tench, Tinca tinca")
    assert found.transform == TransformConfig(crop=Crop.RESIZE, resize=Resize.AREA)
    assert (found.image_size, found.channels, found.model) == ((8, 12), 1, MODEL)
    assert found.config is not None
    assert found.config.evals["val"].every == "1 epoch"
    state = runs.make_state(MODEL, 1, with_ema=True)
    runs.assert_equal(dict(found.variables), state.ema["params"])
    plain = inference.load(f"ckpt:{run}@2", ema=False)
    assert plain.step == 2
    runs.assert_equal(dict(plain.variables), runs.make_state(MODEL, 2).params)


def test_the_forward_pass_normalises_and_evaluates(run: Path) -> None:
    found = inference.load(str(run))
    image = np.random.default_rng(0).integers(0, 256, (2, 8, 12, 1), np.uint8)
    output = inference.make_forward(found)(image)
    pixels = (image.astype(np.float32) / 255 - 0.25) / 0.125
    expected = jax.jit(models.create(MODEL).apply)(dict(found.variables), jnp.asarray(pixels))
    np.testing.assert_allclose(output.logits, expected.logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", [AttentionImpl.CUDNN, AttentionImpl.PALLAS])
def test_a_run_with_a_kernel_that_is_not_here_is_used_with_xlas(
    impl: AttentionImpl, tmp_path: Path
) -> None:
    model = dataclasses.replace(MODEL, dtype=DType.BFLOAT16, dim=16, num_heads=2, attention=impl)
    runs.save(tmp_path, model, {1: None})
    found = inference.load(str(tmp_path))
    assert found.model == model
    image = np.random.default_rng(0).integers(0, 256, (2, *found.image_size, 1), np.uint8)
    plain = with_model(found, dataclasses.replace(model, attention=AttentionImpl.XLA))
    np.testing.assert_array_equal(
        inference.make_forward(found)(image).logits, inference.make_forward(plain)(image).logits
    )


def test_fields_change_and_tables_follow(run: Path) -> None:
    found = inference.load(str(run), overrides={"image_size": (16, 12), "dtype": "bfloat16"})
    assert found.image_size == (16, 12)
    assert found.model.dtype is DType.BFLOAT16
    assert found.variables["params"]["pos_embed"].shape == (1, 1 + 4 * 3, 8)
    assert found.class_names == ("cat", "dog", "tench, Tinca tinca")
    with refused_by("models.with_fields") as caught:
        inference.load(str(run), overrides={"image_sise": 1})
    assert "'image_sise'" in str(caught.value)
    with pytest.raises(UserError, match="2 class names for a model of 3 classes"):
        inference.load(str(run), class_names=["a", "b"])


def test_weights_are_of_the_checkpoint_that_was_described(tmp_path: Path) -> None:
    runs.save(tmp_path, MODEL, {1: None})
    found = inference.describe(f"{tmp_path}@latest")
    runs.save(tmp_path, MODEL, {2: None})
    assert inference.describe(f"{tmp_path}@latest").step == 2
    read_back = inference.read_weights(found)
    runs.assert_equal(dict(read_back.variables), runs.make_state(MODEL, 1).params)


def test_a_program_holds_no_weights(run: Path) -> None:
    found = inference.load(str(run))
    assert make_apply(found) is make_apply(dataclasses.replace(found, variables={}))


def test_flags_change_what_they_name(run: Path, tmp_path: Path) -> None:
    names = tmp_path / "names.json"
    names.write_text(json.dumps(["x", "y", "z"]))
    found, others = read(
        f"--from={run}",
        "a.png",
        "--model.image_size=16,8",
        "--noema",
        f"--classes={names}",
        "--mean=0.1",
        "--transform.crop=center",
        "b.png",
    )
    assert others == ["a.png", "b.png"]
    assert found.image_size == (16, 8)
    assert (found.ema, found.mean, found.std) == (False, (0.1,), (0.125,))
    assert found.class_names == ("x", "y", "z")
    assert found.transform == TransformConfig(crop=Crop.CENTER, resize=Resize.AREA)
    assert found.variables == {}
    assert inference.changes(found) == [
        "model.image_size=(16, 8)",
        "transform.crop=center",
        "mean=(0.1,)",
    ]
    assert inference.changes(read(f"--from={run}", "--model.scan_unroll=1")[0]) == []
    untouched, _ = read(f"--from={run}")
    assert dataclasses.replace(untouched, config=None) == dataclasses.replace(
        inference.describe(str(run)), config=None
    )


BAD = {
    "none": ([], "add --from=DIR of a run"),
    "field": (["--from={run}", "--model.dimm=3"], ("settings.names.check_path", "")),
    "transform": (["--from={run}", "--transform.cropp=center"], ("settings.names.check_path", "")),
    "random": (["--from={run}", "--transform.crop=inception"], "transform is random"),
    "mean": (["--from={run}", "--mean=a"], ("cli.parsing.options._read", "--mean")),
    "means": (["--from={run}", "--mean=1,2"], "must be one number: the model's images are grey"),
    "no number": (["--from={run}", "--mean=nan"], ("settings.fields._check_numbers", "--mean")),
    "endless": (["--from={run}", "--std=inf"], ("settings.fields._check_numbers", "--std")),
    "which": (["--from={run}@beste"], "unknown checkpoint of .*'beste'; did you mean 'best'"),
    "twice": (["--from={run}", "--from={run}"], ("cli.parsing.flags.take", "--from")),
    "std": (["--from={run}", "--std=0"], (RANGE, "--std")),
    "classes": (["--from={run}", "--classes=/no"], ("storage.files.refused", "--classes")),
    "flag": (["--from={run}", "--topp=3"], ("cli.parsing.flags.parse", "--topp")),
    "model": (["--from={run}", "--model=vit_b16"], "is a run with its own model"),
    "average of a file": (["--from=x.npz", "--model=vit_b16", "--ema"], "no moving average"),
    "size": (["--from={run}", "--model.image_size=9"], ("models.base.grid", "model.patch")),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_named(case: str, run: Path) -> None:
    argv, message = BAD[case]
    with refused_as(message):
        read(*(word.format(run=run) for word in argv))
