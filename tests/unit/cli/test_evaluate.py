# SPDX-License-Identifier: Apache-2.0
"""`evaluate` on a run: the run's own numbers, its files, sizes, corruptions, one-line errors."""

import pytest

from vit_jax import data
from vit_jax.cli import evaluate
from vit_jax.errors import UserError
from vit_jax.evals.passes import PassProgress
from vit_jax.inference import describe
from vit_jax.inference.evaluate import check_sizes
from vit_jax.models import MixerConfig, SwinConfig, ViTConfig


def call(*args: str) -> int:
    return evaluate.main(["vit_jax evaluate", *args])


def test_help_names_every_flag(capsys):
    assert call("--help") == 0
    told = capsys.readouterr().out
    for flag in ("from", "dataset", "split", "data_dir", "batch_size", "out", "sizes", "mesh.data"):
        assert f"--{flag}" in told


TINY = {"dim": 16, "image_size": (32, 32), "num_classes": 3, "channels": 3}


@pytest.mark.parametrize(
    "model, sizes, told",
    [
        (MixerConfig(patch=(16, 16), depth=1, **TINY), (32,), "a Mixer mixes the patches of 32x32"),
        (ViTConfig(patch=(16, 16), depth=1, num_heads=2, **TINY), (32, 40), "near it, 16, 32, 48"),
        (SwinConfig(depths=(1,), num_heads=(2,), window=(4,), **TINY), (30,), "24, 28, 32, 36"),
        (
            ViTConfig(patch=(16, 16), depth=1, num_heads=2, **{**TINY, "image_size": (32, 48)}),
            (48,),
            "trained at 32x48",
        ),
    ],
)
def test_sizes_that_a_family_cannot_take(model, sizes, told):
    trained = describe("timm:file.safetensors", model=model)
    with pytest.raises(UserError, match=told):
        check_sizes(trained, data.TransformConfig(), sizes)


def test_a_published_file_needs_a_dataset_of_its_classes(capsys):
    args = ("--from=timm:file.safetensors", "--model=vit_s16")
    assert call(*args) == 2
    assert "names no dataset to evaluate on; add --dataset=NAME" in capsys.readouterr().err
    assert call(*args, "--model.num_classes=21843", "--dataset=digits") == 2
    assert "has the class '0', which is none of the model's 21843" in capsys.readouterr().err


def test_the_meter_speaks_seldom_in_a_log(capsys):
    times = iter([0.0, 5.0, 8.0, 11.0, 12.0, 30.0])
    meter = PassProgress(1000, "evaluating", clock=lambda: next(times))
    for _ in range(5):  # at 5, 8, 11, 12 and 30 seconds
        meter.advance(100)
    meter.close()
    assert capsys.readouterr().err.splitlines() == [
        "evaluating  30%  33 images/s  eta 21s",
        "evaluating  50%  16 images/s  eta 31s",
    ]
