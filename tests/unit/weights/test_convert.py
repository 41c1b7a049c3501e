# SPDX-License-Identifier: Apache-2.0
"""Weights under timm's names: exact there and back, written whole or not at all."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.refusals import refused_by
from tests.unit.models.tiny import TINY
from tests.unit.weights.runs import assert_equal, make_state, save
from vit_jax import weights
from vit_jax.__main__ import main as verb_main
from vit_jax.errors import UserError
from vit_jax.models import ViTConfig
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import FIXED, PosEmbed, sincos2d
from vit_jax.weights import export

ROOT = Path(__file__).parents[3]
VIT = TINY["vit"]


def variables_of(cfg: Any, seed: int = 0) -> dict[str, Any]:
    state = make_state(cfg, seed)
    variables = {"params": state.params, **state.model_state}
    return jax.tree.map(np.asarray, variables)


@pytest.mark.parametrize("kind", sorted(FIXED))
def test_fixed_positions_become_a_learned_table(kind: PosEmbed, tmp_path: Path) -> None:
    fixed = dataclasses.replace(VIT, pos_embed=kind, image_size=(8, 12))
    variables = variables_of(fixed)
    export.save(tmp_path / "x.safetensors", weights.to_timm(variables, fixed))
    learned = dataclasses.replace(fixed, pos_embed=PosEmbed.LEARNED, pos_embed_prefix=False)
    loaded = weights.load(f"timm:{tmp_path}/x.safetensors", learned)["params"]
    np.testing.assert_array_equal(loaded.pop("pos_embed")[0], sincos2d(2, 3, 16, kind))
    assert_equal({"params": loaded}, variables["params"])


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"pre_logits_dim": 8}, "pre_logits_dim=8"),
        ({"token_merging": 2}, "token_merging=2"),
        ({"pre_norm": True}, "model.patch_bias with model.pre_norm"),
        ({"distilled": True, "num_registers": 2}, "num_registers=2 with model.distilled"),
        ({"distilled": True, "pos_embed_prefix": False}, "model.pos_embed_prefix"),
        ({"distilled": True, "pos_embed": PosEmbed.SINCOS2D}, "without learned positions"),
        ({"pool": Pool.QUERY}, "model.pool=query"),
        ({"mlp_bias": False}, "mlp_bias=False with model.proj_bias=True: it has one flag"),
        ({"patch_norm": True}, "patch_norm without model.norm=rms and model.mlp=swiglu"),
        ({"proj_bias": False, "mlp_bias": False, "distilled": True}, "proj_bias=False beside"),
    ],
)
def test_what_timm_does_not_have_is_refused(fields: dict[str, Any], message: str) -> None:
    _check_refused(dataclasses.replace(VIT, **fields), message)


def test_other_families_that_timm_does_not_have_are_refused() -> None:
    _check_refused(TINY["regnet"], "2 stages")
    _check_refused(TINY["convnext"], "2 stages")
    _check_refused(dataclasses.replace(TINY["hybrid"], patch_norm=True), "model.patch_norm")
    _check_refused(TINY["resnet"], "model.depths")
    _check_refused(dataclasses.replace(TINY["cait"], layer_scale=0.0), "model.layer_scale=0")


def _check_refused(cfg: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"timm has no counterpart of .*{message}"):
        weights.to_timm({}, cfg)


def test_nothing_is_left_of_a_file_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "x.safetensors"
    export.save(file, {"a": np.ones(3, np.float32)})
    with refused_by("storage.files.check_file", "--to"):
        export.save(file, {"a": np.zeros(3, np.float32)})

    def full(state: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export, "save_file", full)
    with pytest.raises(UserError, match="No space left on device"):
        export.save(file, {"a": np.zeros(3, np.float32)}, overwrite=True)
    assert os.listdir(tmp_path) == ["x.safetensors"]
    np.testing.assert_array_equal(load_file(file)["a"], np.ones(3))


def test_the_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    export.save(tmp_path / "x.safetensors", {"a": np.ones(3, np.float32)})
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workdir = tmp_path_factory.mktemp("run")
    save(workdir, VIT, {1: 0.9, 2: 0.1}, with_ema=True)
    return workdir


def convert(*args: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "vit_jax", "convert", *args],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )


def call(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str]:
    status = verb_main(["vit_jax", "convert", *args])
    shown = capsys.readouterr()
    return status, shown.out + shown.err


BAD = {
    "no source": (["--to=timm:x.safetensors"], "add --from=DIR of a run"),
    "no target": (["--from={run}"], "add --to=timm:FILE.safetensors"),
    "target's kind": (
        ["--from={run}", "--to=npz:x.npz"],
        "valid: hf:FOLDER, timm:FILE.safetensors",
    ),
    "suffix": (
        ["--from={run}", "--to=timm:x.bin"],
        "must end in .safetensors, which is what is written",
    ),
    "directory": (["--from={run}", "--to=timm:/no/x.safetensors"], "/no is no directory"),
    "there": (["--from={run}", "--to=timm:{there}"], "is there already; choose another name"),
    "step": (["--from={run}@9", "--to=timm:x.safetensors"], "there: 1, 2"),
    "model of a run": (["--from={run}", "--model=vit_b16"], "is a run with its own model"),
    "no model": (["--from=timm:{there}", "--to=timm:x.safetensors"], "add --model=VARIANT"),
    "variant": (["--from=timm:{there}", "--model=vit_b61"], "did you mean 'vit_b16'"),
    "field": (["--from={run}", "--model.dimm=3"], "did you mean --model.dim"),
    "value": (
        ["--from={run}", "--model.pool=gpa"],
        "unknown --model.pool 'gpa'; did you mean 'gap'?",
    ),
    "flag": (["--from={run}", "--forse"], "did you mean '--force'"),
    "impossible": (["--from={run}", "--model.pre_logits_dim=4", "--to=timm:x"], "no counterpart"),
    "average of a file": (
        ["--from=timm:{there}", "--model=vit_b16", "--ema", "--to=timm:x.safetensors"],
        "holds no moving average",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_are_one_line(
    case: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = tmp_path / "there.safetensors"
    export.save(there, {"a": np.ones(3, np.float32)})
    args, message = BAD[case]
    status, told = call(capsys, *(a.format(run=f"ckpt:{run}", there=there) for a in args))
    assert status == 2
    assert told.startswith("error: ")
    assert told.count("\n") == 1
    assert message in told
    assert not Path("x.safetensors").exists()


def test_a_pool_without_a_prefix_is_timms_default() -> None:
    """Names do not depend on how tokens are pooled, but for the norm's."""
    gap: ViTConfig = dataclasses.replace(VIT, pool=Pool.GAP, class_token=False, fc_norm=True)
    state = weights.to_timm(variables_of(gap), gap)
    assert "fc_norm.weight" in state
    assert "norm.weight" not in state
