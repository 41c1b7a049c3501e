# SPDX-License-Identifier: Apache-2.0
"""Both losses against their definitions in numpy, and against transformers and open_clip."""

from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import contrastive
from vit_jax.models.contrastive import Contrast, sigmoid_loss, softmax_loss

# Of sample models of transformers (CLIP, SigLIP, SigLIP 2) and open_clip in float64: embeddings of
# six pairs, the loss of each form, and its derivatives.
GOLDEN = Path(__file__).parents[2] / "golden/contrastive.npz"
SCALE, BIAS = 7.0, -1.5
IDS = np.array([0, 1, 2, 1, 4, 1, 2])  # three positives of 1, two of 2


def _pairs(count: int, width: int = 5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    image, text = rng.normal(size=(2, count, width))
    text += image
    return tuple(x / np.linalg.norm(x, axis=1, keepdims=True) for x in (image, text))


def _softmax(image: np.ndarray, text: np.ndarray, scale: float, ids: np.ndarray) -> float:
    powers = np.exp(scale * image @ text.T)
    targets = (ids[:, None] == ids).astype(float)
    targets /= targets.sum(axis=1, keepdims=True)
    of_image = -np.log(powers / powers.sum(axis=1, keepdims=True))
    of_text = -np.log(powers / powers.sum(axis=0, keepdims=True)).T
    return sum((targets * x).sum(axis=1).mean() for x in (of_image, of_text)) / 2


def _sigmoid(
    image: np.ndarray, text: np.ndarray, scale: float, bias: float, ids: np.ndarray
) -> float:
    p = 1 / (1 + np.exp(-(scale * image @ text.T + bias)))
    return -np.log(np.where(ids[:, None] == ids, p, 1 - p)).sum() / len(ids)


def _slope(f: Callable[..., float], args: list[np.ndarray], i: int) -> np.ndarray:
    """Differentiate by central differences in float64."""
    found = np.zeros(args[i].shape)
    for at in np.ndindex(found.shape):
        both = []
        for step in (1e-6, -1e-6):
            moved = args[i].copy()
            moved[at] += step
            both.append(f(*args[:i], moved, *args[i + 1 :]))
        found[at] = (both[0] - both[1]) / 2e-6
    return found


FORMS = {
    "softmax": (softmax_loss, _softmax, (SCALE,)),
    "sigmoid": (sigmoid_loss, _sigmoid, (SCALE, BIAS)),
}


def _gradients(
    loss: Callable[..., Contrast], args: list[np.ndarray], ids: np.ndarray | None
) -> tuple[Contrast, tuple[jax.Array, ...]]:
    numbers = None if ids is None else jnp.asarray(ids)

    def value(*args: jax.Array) -> tuple[jax.Array, Contrast]:
        found = loss(*args, numbers)
        return found.loss, found

    over = tuple(range(len(args)))
    grad = jax.jit(jax.grad(value, over, has_aux=True))
    gradients, found = grad(*[jnp.asarray(x, jnp.float32) for x in args])
    return found, gradients


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_definition_and_its_slopes(form: str, subtests: pytest.Subtests) -> None:
    loss, definition, scalars = FORMS[form]
    args = [*_pairs(len(IDS)), *map(np.asarray, scalars)]
    for name, ids in {"all differ": None, "several positives": IDS}.items():
        numbers = np.arange(len(IDS)) if ids is None else ids
        found, gradients = _gradients(loss, args, ids)
        with subtests.test(name):
            np.testing.assert_allclose(found.loss, definition(*args, numbers), rtol=1e-6)
        for i, gradient in enumerate(gradients):
            with subtests.test(name, argument=i):
                expected = _slope(lambda *args, ids=numbers: definition(*args, ids), args, i)
                np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)


def test_equals_the_losses_of_other_codes(subtests: pytest.Subtests) -> None:
    with np.load(GOLDEN) as file:
        golden = dict(file)
    for model in sorted({name.split("/")[0] for name in golden}):
        one = {key.split("/")[1]: x for key, x in golden.items() if key.startswith(f"{model}/")}
        image, text = one["image_embedding"], one["text_embedding"]
        scale = np.exp(one["logit_scale"])
        clip, (*_, dscale) = _gradients(softmax_loss, [image, text, scale], None)
        siglip, slopes = _gradients(sigmoid_loss, [image, text, scale, one["logit_bias"]], None)
        found = {
            "clip_loss": clip.loss,
            "d_clip_d_logscale": dscale * scale,
            "siglip_loss": siglip.loss,
            "d_siglip_d_logscale": slopes[2] * scale,
            "d_siglip_d_bias": slopes[3],
        }
        for name, value in found.items():
            with subtests.test(model, value=name):
                np.testing.assert_allclose(value, one[name], rtol=2e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("count, pairs", [(24, 24 * 6), (24, 24 * 7), (23, 46), (24, 5)])
def test_blocks_change_nothing(
    form: str, count: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, _, scalars = FORMS[form]
    args, ids = [*_pairs(count), *map(np.asarray, scalars)], np.arange(count) // 3
    whole = _gradients(loss, args, ids)
    monkeypatch.setattr(contrastive, "_PAIRS", pairs)
    blocks = _gradients(loss, args, ids)
    np.testing.assert_allclose(blocks[0], whole[0], rtol=1e-6)
    for found, expected in zip(blocks[1], whole[1], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_no_block_has_more_pairs_than_the_limit(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loss, _, scalars = FORMS[form]
    monkeypatch.setattr(contrastive, "_PAIRS", 24 * 6)
    step = jax.jit(jax.grad(lambda *args: loss(*args, *map(jnp.float32, scalars)).loss, (0, 1)))
    text = step.lower(*_pairs(24)).as_text()
    assert "tensor<24x6xf32>" in text
    assert "tensor<24x24xf32>" not in text


@pytest.mark.parametrize("form", FORMS)
def test_accuracy_counts_a_tie_as_a_miss(form: str, subtests: pytest.Subtests) -> None:
    loss, _, scalars = FORMS[form]
    eye = np.eye(4, dtype=np.float32)
    cases = {
        "each finds its own": (eye, eye, None, (1, 1)),
        "all are equal": (eye[[0] * 4], eye[[0] * 4], None, (0, 0)),
        # Image 1 looks as image 0: text 0 has two equal images, and neither text is image 1's.
        "one image twice": (eye[[0, 0, 2, 3]], eye, None, (0.75, 0.5)),
        "one caption twice": (eye[[0, 0, 2, 3]], eye[[0, 0, 2, 3]], [5, 5, 2, 3], (1, 1)),
        "one caption twice under two ids": (eye[[0, 0, 2, 3]], eye[[0, 0, 2, 3]], None, (0.5, 0.5)),
    }
    for name, (image, text, ids, expected) in cases.items():
        with subtests.test(name):
            numbers = None if ids is None else jnp.asarray(ids)
            found = loss(*map(jnp.asarray, (image, text, *map(np.float32, scalars))), numbers)
            assert (found.image_to_text, found.text_to_image) == expected


@pytest.mark.parametrize("form", FORMS)
def test_half_precision_is_computed_in_float32(form: str) -> None:
    loss, _, scalars = FORMS[form]
    image, text = (jnp.asarray(x, jnp.bfloat16) for x in _pairs(16))
    values = [jnp.float32(x) for x in scalars]
    grad = jax.jit(jax.value_and_grad(lambda *x: loss(*x, *values).loss, (0, 1)))
    half, slopes = grad(image, text)
    full, expected = grad(image.astype(jnp.float32), text.astype(jnp.float32))
    assert half.dtype == jnp.float32
    assert half == full
    for found, slope in zip(slopes, expected, strict=True):
        assert found.dtype == jnp.bfloat16
        np.testing.assert_array_equal(found, slope.astype(jnp.bfloat16))


@pytest.mark.parametrize("form", FORMS)
def test_extreme_logits_have_a_finite_loss_and_gradient(form: str) -> None:
    loss, _, scalars = FORMS[form]
    image = np.eye(4)
    for text in (image, -image, image[::-1]):
        args = [image, text, np.asarray(1e4), *map(np.asarray, scalars[1:])]
        found, gradients = _gradients(loss, args, None)
        assert np.isfinite(found.loss)
        assert found.loss >= 0
        assert all(np.isfinite(x).all() for x in gradients)


def test_what_is_not_finite_stays_so() -> None:
    image = jnp.eye(4).at[1, 2].set(jnp.nan)
    for found in (
        softmax_loss(image, jnp.eye(4), jnp.float32(1)),
        sigmoid_loss(image, jnp.eye(4), jnp.float32(1), jnp.float32(0)),
    ):
        assert np.isnan(found.loss)
