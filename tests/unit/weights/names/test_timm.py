# SPDX-License-Identifier: Apache-2.0
"""Official PyTorch checkpoints, written from our variables under the names of their authors."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.weights.google_writer import random_variables
from vit_jax import models, trees, weights
from vit_jax.errors import UserError
from vit_jax.weights.apply import in_memory
from vit_jax.weights.names import timm

State = dict[str, np.ndarray]
DEIT3 = models.ViTConfig(
    image_size=(8,),
    patch=(4, 4),
    dim=12,
    depth=2,
    num_heads=3,
    mlp_dim=20,
    num_classes=5,
    pos_embed_prefix=False,
    layer_scale=0.1,
)


def made(cfg: models.ModelConfig) -> Any:
    return random_variables(models.abstract(cfg))


def old_timm(state: State) -> State:
    kernel = state["patch_embed.proj.weight"]
    return {**state, "patch_embed.proj.weight": kernel.reshape(len(kernel), -1)}


def test_two_tensors_of_one_name() -> None:
    arrays = {"blocks.0.gamma_1": np.zeros(12), "blocks.0.ls1.gamma": np.zeros(12)}
    with pytest.raises(UserError, match=r"gamma_1 and blocks.0.ls1.gamma are both"):
        timm.with_timm_names(in_memory(arrays), DEIT3)


def test_flat_patches_of_another_size_are_not_guessed(tmp_path: Path) -> None:
    state = old_timm(weights.to_timm(made(DEIT3), DEIT3))
    save_file(state, tmp_path / "x.safetensors")
    cfg = dataclasses.replace(DEIT3, patch=(2, 2), image_size=(4,))
    with pytest.raises(UserError, match=r"patch_embed.proj.weight: in the file \[12, 48\], here"):
        weights.load(f"timm:{tmp_path / 'x.safetensors'}", cfg)


def test_apples_own_names_of_aimv2(tmp_path: Path) -> None:
    cfg = models.variant(
        "vit_l14_aimv2", image_size=8, patch=4, dim=8, depth=2, num_heads=2, mlp_dim=12
    )
    variables = made(cfg)
    stem, layer = {"patch_embed": "preprocessor.patchifier"}, {"fc1_g": "fc1", "fc1_x": "fc3"}
    theirs = {}
    for name, value in weights.to_timm(variables, cfg).items():
        first, _, rest = name.partition(".")
        if first == "pos_embed":
            name = "preprocessor.pos_embed"
        elif first == "norm":
            name = f"trunk.post_trunk_norm.{rest}"
        elif first in stem:
            name = f"{stem[first]}.{rest}"
        elif first == "blocks":
            for ours, own in {**layer, "norm1": "norm_1", "norm2": "norm_2"}.items():
                rest = rest.replace(f"{ours}.", f"{own}.")
            name = f"trunk.blocks.{rest}"
        theirs[name] = value
    save_file(theirs, tmp_path / "x.safetensors")
    found = dict(trees.named_leaves(weights.load(f"timm:{tmp_path / 'x.safetensors'}", cfg)))
    for name, value in trees.named_leaves(variables):
        np.testing.assert_array_equal(found[name], value, err_msg=name)
