# SPDX-License-Identifier: Apache-2.0
"""Both losses on every layout of 1, 2, 4 and 8 devices against the formula of the whole batch."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.cost import hlo
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.models.contrastive import Contrast, passed_bytes, sigmoid_loss, softmax_loss

BATCH, WIDTH = 64, 24
LAYOUTS = ((1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 8, 1), (2, 4, 1), (2, 2, 2))
Array = jax.Array


def whole_softmax(image: Array, text: Array, scale: Array, ids: Array) -> Array:
    logits = scale * jnp.matmul(image, text.T, precision="highest")
    same = (ids[:, None] == ids[None]).astype(jnp.float32)
    targets = same / same.sum(1, keepdims=True)
    of_image = -(targets * jax.nn.log_softmax(logits, axis=1)).sum(1)
    of_text = -(targets * jax.nn.log_softmax(logits, axis=0)).sum(0)
    return (of_image.mean() + of_text.mean()) / 2


def whole_sigmoid(image: Array, text: Array, scale: Array, bias: Array, ids: Array) -> Array:
    logits = scale * jnp.matmul(image, text.T, precision="highest") + bias
    signs = jnp.where(ids[:, None] == ids[None], 1.0, -1.0)
    return -jax.nn.log_sigmoid(signs * logits).sum(1).mean()


FORMS: dict[str, tuple[Callable[..., Contrast], Callable[..., Array], tuple[float, ...]]] = {
    "softmax": (softmax_loss, whole_softmax, (14.3,)),
    "sigmoid": (sigmoid_loss, whole_sigmoid, (10.0, -4.0)),
}


def _args(batch: int, scalars: tuple[float, ...]) -> list[np.ndarray]:
    """Return two embeddings, the scalars and the ids, of which a quarter is there twice."""
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, batch, WIDTH))
    pairs = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (image, text + image)]
    ids = rng.permutation(batch) % (batch * 7 // 8)
    return [*(np.asarray(x, np.float32) for x in (*pairs, *scalars)), ids.astype(np.int32)]


def _run(step: Any, layout: tuple[int, int, int], args: list[np.ndarray]) -> Any:
    mesh = sharding.make_mesh(
        MeshConfig(**dict(zip(sharding.AXES, layout, strict=True))),
        jax.devices()[: int(np.prod(layout))],
    )
    split = sharding.batch_sharding(mesh)
    with jax.set_mesh(mesh):
        fits = len(args[0]) % sharding.batch_shards(mesh) == 0
        placed = [jax.device_put(x, split) if x.ndim and fits else jnp.asarray(x) for x in args]
        return jax.device_get(step(*placed))


def _of(loss: Callable[..., Contrast], scalars: tuple[float, ...]) -> Any:
    """Return a function of all arguments to (Contrast, gradients)."""

    def value(*args: Array) -> tuple[Array, Contrast]:
        found = loss(*args)
        return found.loss, found

    grad = jax.grad(value, tuple(range(2 + len(scalars))), has_aux=True)
    return jax.jit(lambda *args: grad(*args)[::-1])


@pytest.mark.parametrize("form", FORMS)
def test_every_layout_gives_the_whole_batchs_loss_and_gradients(
    form: str, subtests: pytest.Subtests
) -> None:
    loss, whole, scalars = FORMS[form]
    args = _args(BATCH, scalars)
    grad = jax.value_and_grad(whole, tuple(range(2 + len(scalars))))
    expected, slopes = jax.jit(grad)(*args)
    ours = _of(loss, scalars)
    first, _ = ours(*args)
    for layout in LAYOUTS:
        with subtests.test(layout=layout):
            found, gradients = _run(ours, layout, args)
            np.testing.assert_allclose(found.loss, expected, rtol=1e-6)
            assert found[1:] == first[1:]  # shares of the batch, the same to the bit
            for gradient, slope in zip(gradients, slopes, strict=True):
                largest = np.abs(slope).max()
                np.testing.assert_allclose(gradient, slope, rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize("form", FORMS)
def test_a_batch_that_devices_do_not_divide_has_the_same_loss(form: str) -> None:
    loss, whole, scalars = FORMS[form]
    args = _args(12, scalars)
    found, _ = _run(_of(loss, scalars), (8, 1, 1), args)
    np.testing.assert_allclose(found.loss, whole(*map(jnp.asarray, args)), rtol=1e-6)


def _compiled(step: Any, num_devices: int, batch: int) -> tuple[Any, dict[str, int]]:
    """Compile for a batch that no device holds; returns the program and its mesh's sizes."""
    mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:num_devices])
    split = sharding.batch_sharding(mesh)
    rows = jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32, sharding=split)
    with jax.set_mesh(mesh):
        grad = jax.jit(jax.grad(step, (0, 1)), out_shardings=(split, split))
        return grad.lower(rows, rows).compile(), dict(mesh.shape)


@pytest.mark.parametrize("form", FORMS)
def test_memory_does_not_grow_with_the_square_of_the_batch(
    form: str, subtests: pytest.Subtests
) -> None:
    loss, whole, scalars = FORMS[form]
    values = [jnp.float32(x) for x in scalars]

    def ours(image: Array, text: Array) -> Array:
        return loss(image, text, *values).loss

    def theirs(image: Array, text: Array) -> Array:
        return whole(image, text, *values, jnp.arange(len(image)))

    def temporary(step: Any, num_devices: int, batch: int) -> int:
        return _compiled(step, num_devices, batch)[0].memory_analysis().temp_size_in_bytes

    for num_devices, batch in ((1, 8192), (8, 8 * 2048)):
        with subtests.test(num_devices=num_devices):
            small, large = (temporary(ours, num_devices, n) for n in (batch, 4 * batch))
            assert large < 1.5 * small  # 16 times as many pairs
            assert large < 64 * 2**20
            assert temporary(theirs, num_devices, batch) >= 4 * batch**2 / num_devices


@pytest.mark.parametrize("form", FORMS)
def test_what_goes_round_is_as_counted(form: str, subtests: pytest.Subtests) -> None:
    loss, _, scalars = FORMS[form]
    values = [jnp.float32(x) for x in scalars]
    for num_devices in (1, 4, 8):
        with subtests.test(num_devices=num_devices):
            compiled, sizes = _compiled(lambda *pair: loss(*pair, *values).loss, num_devices, BATCH)
            found = hlo.find(hlo.parse(compiled.as_text()), sizes)
            assert {x.kind for x in found} <= {"collective-permute", "all-reduce"}
            moved = sum(x.num_bytes * x.times for x in found if x.kind == "collective-permute")
            assert moved == passed_bytes(BATCH, WIDTH, num_devices, softmax=form == "softmax")
