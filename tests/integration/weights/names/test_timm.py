# SPDX-License-Identifier: Apache-2.0
"""Official PyTorch checkpoints, written from our variables under the names of their authors."""

import dataclasses
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.weights.names.test_forms import renamed
from tests.unit.weights.names.test_timm import DEIT3, State, made, old_timm
from vit_jax import models, weights
from vit_jax.weights import apply
from vit_jax.weights.apply import in_memory
from vit_jax.weights.names import timm

CAIT = models.CaiTConfig(
    image_size=(8,),
    patch=(4, 4),
    dim=12,
    depth=2,
    num_heads=3,
    mlp_dim=20,
    token_depth=1,
    token_mlp_dim=20,
    num_classes=5,
)
CONVIT = models.ConViTConfig(
    image_size=(8,),
    patch=(4, 4),
    depth=3,
    num_heads=2,
    head_dim=6,
    mlp_dim=20,
    local_up_to_layer=2,
    num_classes=5,
)
SWIN = models.SwinConfig(
    image_size=(16,),
    patch=(2,),
    dim=8,
    depths=(1, 2, 1),
    num_heads=(1, 2, 4),
    window=(2,),
    num_classes=5,
)
REGNET = models.RegNetConfig(
    depth=8,  # of four stages, as all of PyTorch's
    w0=8,
    wa=8.0,
    wm=2.0,
    group_width=4,
    stem_width=8,
    image_size=(16, 16),
    num_classes=5,
)


def deit3(state: State) -> State:
    return renamed(state, (r"\.ls([12])\.gamma", r".gamma_\1"))


def cait(state: State) -> State:
    return renamed(state, ("^", "module."))


def convit(state: State) -> State:
    return state


def swin(state: State) -> State:
    state = renamed(
        state,
        (r"^layers\.(\d)\.downsample", lambda m: f"layers.{int(m[1]) - 1}.downsample"),
        (r"^head\.fc\.", "head."),
    )
    for key in ("layers.0.blocks.0.attn.relative_position_index", "layers.1.blocks.1.attn_mask"):
        state[key] = np.zeros((4, 4), np.int64)
    return state


def torchvision_regnet(state: State) -> State:
    def block(found: re.Match[str]) -> str:
        return f"trunk_output.block{found[1]}.block{found[1]}-{int(found[2]) - 1}."

    state = {**state, "stem.bn.num_batches_tracked": np.array(7)}
    return renamed(
        state,
        (r"^stem\.conv\.", "stem.0."),
        (r"^stem\.bn\.", "stem.1."),
        (r"^s(\d+)\.b(\d+)\.", block),
        (r"\.downsample\.conv\.", ".proj.0."),
        (r"\.downsample\.bn\.", ".proj.1."),
        (r"\.conv([123])\.conv\.", lambda m: f".f.{' abc'[int(m[1])]}.0."),
        (r"\.conv([123])\.bn\.", lambda m: f".f.{' abc'[int(m[1])]}.1."),
        (r"\.se\.", ".f.se."),
        (r"^head\.fc\.", "fc."),
    )


CASES = [
    pytest.param(DEIT3, deit3, id="DeiT III"),
    pytest.param(CAIT, cait, id="CaiT"),
    pytest.param(CONVIT, convit, id="ConViT"),
    pytest.param(SWIN, swin, id="Swin"),
    pytest.param(REGNET, torchvision_regnet, id="torchvision RegNet"),
    pytest.param(dataclasses.replace(DEIT3, patch=(2, 4)), old_timm, id="flat patches"),
]


def check_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


@pytest.mark.parametrize("cfg, write", CASES)
def test_official_and_timm_names_give_the_same(
    cfg: models.ModelConfig, write: Callable[[State], State], tmp_path: Path
) -> None:
    variables = made(cfg)
    state = weights.to_timm(variables, cfg)
    for name, one in (("official", write(dict(state))), ("timm", state)):
        save_file(one, tmp_path / f"{name}.safetensors")
        check_equal(weights.load(f"timm:{tmp_path / f'{name}.safetensors'}", cfg), variables)


def test_names_of_torchvision() -> None:
    """By name, since a rule and its inverse could be wrong together."""
    state = weights.to_timm(made(REGNET), REGNET)
    names = [
        "stem.0.weight",
        "stem.1.running_var",
        "trunk_output.block1.block1-0.proj.0.weight",
        "trunk_output.block3.block3-1.f.a.0.weight",
        "trunk_output.block3.block3-1.f.b.1.running_mean",
        "trunk_output.block3.block3-1.f.se.fc1.bias",
        "trunk_output.block3.block3-1.f.c.0.weight",
        "fc.bias",
    ]
    written = torchvision_regnet(dict(state))
    assert set(names) <= set(written)
    expected = [
        "stem.conv.weight",
        "stem.bn.running_var",
        "s1.b1.downsample.conv.weight",
        "s3.b2.conv1.conv.weight",
        "s3.b2.conv2.bn.running_mean",
        "s3.b2.se.fc1.bias",
        "s3.b2.conv3.conv.weight",
        "head.fc.bias",
    ]
    source = timm.with_timm_names(in_memory({name: np.zeros(1) for name in names}), REGNET)
    assert list(source.shapes) == expected


def test_a_pytorch_file_of_deit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    variables = made(DEIT3)
    state = deit3(weights.to_timm(variables, DEIT3))
    for is_zip in (True, False):
        torch.save(
            {"model": {key: torch.from_numpy(value) for key, value in state.items()}},
            tmp_path / "x.pth",
            _use_new_zipfile_serialization=is_zip,
        )
        check_equal(weights.load(f"timm:{tmp_path / 'x.pth'}", DEIT3), variables)


def test_the_absolute_positions_of_swin_have_no_counterpart() -> None:
    state = swin(weights.to_timm(made(SWIN), SWIN))
    state["absolute_pos_embed"] = np.zeros((1, 64, 8), np.float32)
    source = timm.with_timm_names(in_memory(state), SWIN)
    assert "absolute_pos_embed" in source.shapes  # so that it is refused as unused


@pytest.mark.parametrize("shape", [(130, 3), (2, 64, 3), (65,), ()])
def test_transposed_kernels_are_copied_whole(shape: tuple[int, ...]) -> None:
    values = np.arange(math.prod(shape), dtype=np.float32).reshape(shape).T
    copied = np.full(values.shape, -1.0, np.float32)
    apply._copy(values, copied)
    np.testing.assert_array_equal(copied, values)
