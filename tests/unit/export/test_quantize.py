# SPDX-License-Identifier: Apache-2.0
"""Weights in fewer bits, against the definition."""

import ml_dtypes
import numpy as np
import pytest

from vit_jax import trees
from vit_jax.export.quantize import MIN_SIZE, Quantized, WeightDType, pack, quantize, unpack


@pytest.mark.parametrize("shape", [(48, 32), (3, 3, 8, 16)])
def test_every_channel_has_its_own_scale(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    kernel = (rng.normal(size=shape) * 10.0 ** rng.integers(-3, 3, shape[-1])).astype(np.float32)
    found = quantize(kernel)
    assert found.values.dtype == np.int8
    for channel in range(shape[-1]):
        column = kernel[..., channel].astype(np.float64)
        step = np.abs(column).max() / 127
        assert found.scale[..., channel].item() == pytest.approx(step, rel=1e-6)
        # A tie of the float64 definition may fall to either side in float32.
        expected = column / step
        assert np.abs(found.values[..., channel] - expected).max() <= 0.5 + 1e-4
        assert np.abs(found.values[..., channel]).max() == 127


def test_layers_of_a_stack_are_apart() -> None:
    kernel = np.random.default_rng(0).normal(size=(3, 8, 4)).astype(np.float32)
    kernel[1] *= 100
    found = quantize(kernel, stacked=True)
    assert found.scale.shape == (3, 1, 4)
    for layer in range(3):
        alone = quantize(kernel[layer])
        np.testing.assert_array_equal(found.values[layer], alone.values)
        np.testing.assert_array_equal(found.scale[layer], alone.scale)


def test_a_channel_of_zeros_stays_zero() -> None:
    with np.errstate(all="raise"):
        found = quantize(np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(found.values * found.scale, np.zeros((4, 2)))


def _variables() -> dict:
    rng = np.random.default_rng(0)
    sizes = {
        "params/head/kernel": (MIN_SIZE // 8, 8),
        "params/small/kernel": (MIN_SIZE // 8 - 1, 8),
        "params/head/bias": (2 * MIN_SIZE,),
        "params/pos_embed": (1, MIN_SIZE, 2),
        "params/blocks/fc1/kernel": (2, 32, 32),
        "params/blocks/norm1/scale": (2, MIN_SIZE),
        "batch_stats/bn/mean": (2, MIN_SIZE),
    }
    return trees.nest({k: rng.normal(size=s).astype(np.float32) for k, s in sizes.items()})


KERNELS = {"params/head/kernel", "params/blocks/fc1/kernel"}
SHRUNK = {
    WeightDType.FLOAT32: set(),
    WeightDType.INT8: KERNELS,
    WeightDType.BFLOAT16: KERNELS | {"params/pos_embed"},
}


@pytest.mark.parametrize("dtype", WeightDType)
def test_which_arrays_shrink(dtype: WeightDType) -> None:
    variables = _variables()
    packed = pack(variables, dtype)
    back = dict(trees.named_leaves(unpack(packed)))
    for name, leaf in trees.named_leaves(variables):
        node = packed
        for part in name.split("/"):
            node = node[part]
        if name not in SHRUNK[dtype]:
            assert node is leaf, name
        elif dtype is WeightDType.BFLOAT16:
            assert node.dtype == ml_dtypes.bfloat16
        else:
            assert isinstance(node, Quantized)
        assert back[name].dtype == np.float32
        step = {"float32": 0, "bfloat16": np.abs(leaf) / 256}.get(dtype)
        if step is None:
            step = node.scale / 2 * (1 + 1e-5) if isinstance(node, Quantized) else 0
        assert (np.abs(back[name] - leaf) <= step).all(), name
