# SPDX-License-Identifier: Apache-2.0
"""Resizing from any size to any other against torch's and timm's own functions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.parity.harness import random_configs
from tests.parity.torch_models import timm, torch
from vit_jax.weights import resize

sides = st.tuples(st.integers(1, 12), st.integers(1, 12))
TORCH = {
    "bicubic antialiased": (resize.bicubic_antialiased, "bicubic", True),
    "bicubic": (resize.bicubic, "bicubic", False),
    "bilinear": (resize.bilinear, "bilinear", False),
}


def draw(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("name", TORCH)
@random_configs
@given(old=sides, new=sides)
def test_grid(name: str, old: tuple[int, int], new: tuple[int, int]) -> None:
    matrix, mode, antialias = TORCH[name]
    if antialias and new[1] == 1:
        return  # torch 2.13 then repeats the first row in all others
    grid = draw((*old, 2))
    there = torch.nn.functional.interpolate(
        torch.from_numpy(grid.transpose(2, 0, 1)[None].copy()),
        size=new,
        mode=mode,
        antialias=antialias,
        align_corners=False,
    )
    out = resize.resize_grid(grid, new, matrix)
    np.testing.assert_allclose(out, there[0].numpy().transpose(1, 2, 0), atol=1e-5, rtol=0)


@random_configs
@given(old=st.integers(2, 12), new=st.tuples(st.integers(2, 24), st.integers(2, 24)))
def test_bias_table(old: int, new: tuple[int, int]) -> None:
    before, after = (2 * old - 1, 2 * old - 1), (2 * new[0] - 1, 2 * new[1] - 1)
    if before == after:
        return
    table = draw((before[0] * before[1], 2))
    there = timm.layers.resize_rel_pos_bias_table(
        torch.from_numpy(table), new_window_size=new, new_bias_shape=(after[0] * after[1], 2)
    )
    out = resize.resize_grid(table.reshape(*before, 2), after, resize.geometric)
    np.testing.assert_allclose(out.reshape(-1, 2), there.numpy(), atol=1e-5, rtol=0)


@random_configs
@given(old=sides, new=sides)
def test_patch_kernel(old: tuple[int, int], new: tuple[int, int]) -> None:
    kernel = draw((*old, 3, 2))
    for antialias, matrix in ((True, resize.bicubic_antialiased), (False, resize.bilinear)):
        if antialias and new[1] == 1:
            continue
        there = timm.layers.resample_patch_embed(
            torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()),
            list(new),
            interpolation="bicubic" if antialias else "bilinear",
            antialias=antialias,
        )
        out = resize.resize_patch(kernel, new, matrix)
        scale = max(1.0, float(np.abs(out).max()))
        there = there.numpy().transpose(2, 3, 1, 0)
        np.testing.assert_allclose(out / scale, there / scale, atol=5e-5, rtol=0)
