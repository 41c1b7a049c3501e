# SPDX-License-Identifier: Apache-2.0
"""Weights under timm's names: exact there and back, written whole or not at all."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import assert_equal, save
from tests.unit.weights.test_convert import VIT, call, convert, variables_of
from vit_jax import weights
from vit_jax.weights import export

# timm's have four stages.
CONFIGS = {
    **TINY,
    "regnet": dataclasses.replace(TINY["regnet"], depth=8),
    "convnext": dataclasses.replace(
        TINY["convnext"], depths=(1,) * 4, widths=(8,) * 4, image_size=(32, 32)
    ),
    "resnet": dataclasses.replace(
        TINY["resnet"], depths=(1, 1, 1, 1), widths=(16, 32, 32, 32), stem_width=64
    ),
}


@pytest.mark.parametrize("family", CONFIGS)
def test_there_and_back(family: str, tmp_path: Path) -> None:
    cfg = CONFIGS[family]
    variables = variables_of(cfg)
    state = weights.to_timm(variables, cfg)
    size = export.save(tmp_path / "x.safetensors", state)
    assert size == (tmp_path / "x.safetensors").stat().st_size
    assert_equal(
        weights.load(f"timm:{tmp_path}/x.safetensors", cfg), variables.pop("params"), variables
    )
    counters = [key for key in state if key.endswith("num_batches_tracked")]
    assert len(counters) == sum(key.endswith("running_mean") for key in state)
    for key in counters:
        assert (state[key].dtype, state[key].shape) == (np.int64, ())
    assert all(v.dtype == np.float32 for key, v in state.items() if key not in counters)


def test_a_patch_bias_that_is_not_there_is_zero() -> None:
    cfg = dataclasses.replace(VIT, patch_bias=False)
    state = weights.to_timm(variables_of(cfg), cfg)
    np.testing.assert_array_equal(state["patch_embed.proj.bias"], np.zeros(16, np.float32))
    clip = dataclasses.replace(cfg, pre_norm=True)
    assert "patch_embed.proj.bias" not in weights.to_timm(variables_of(clip), clip)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("run")
    save(workdir, VIT, {1: 0.9, 2: 0.1}, with_ema=True)
    return workdir


def test_the_command_writes_a_runs_weights(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "vit.safetensors"
    done = convert(f"--from=ckpt:{run}", f"--to=timm:{file}")
    assert done.returncode == 0, done.stderr
    state = load_file(file)
    size = f"{file.stat().st_size:,}"
    assert done.stdout == f"{file}: {len(state)} tensors, {size} bytes, from ckpt:{run}\n"
    loaded = weights.load(f"ckpt:{run}@1", VIT)
    expected = weights.to_timm(loaded, VIT)
    assert state.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(state[key], value, err_msg=key)


def test_the_command_brings_to_size_and_takes_the_average(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "vit.safetensors"
    args = ["--from", f"ckpt:{run}@latest", "--to", f"timm:{file}", "--ema"]
    status, told = call(capsys, *args, "--model.image_size=12,20")
    assert status == 0, told
    larger = dataclasses.replace(VIT, image_size=(12, 20))
    expected = weights.to_timm(weights.load(f"ckpt:{run}@2", larger, ema=True), larger)
    found = load_file(file)
    assert found["pos_embed"].shape == (1, 16, 16)
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)
    # And once more, from that file.
    again = tmp_path / "again.safetensors"
    fields = ["dim=16", "depth=2", "num_heads=2", "mlp_dim=32", "num_classes=3"]
    fields += ["image_size=12,20", "patch=4"]
    model = ["--model", "vit_b16", *(f"--model.{field}" for field in fields)]
    status, told = call(capsys, f"--from=timm:{file}", f"--to=timm:{again}", *model)
    assert status == 0, told
    assert again.read_bytes() == file.read_bytes()
