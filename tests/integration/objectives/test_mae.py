# SPDX-License-Identifier: Apache-2.0
"""What MAE's encoder sees, how its weights start, and its pictures."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.unit.objectives.test_mae import _model, _objective
from vit_jax.config.tree import Config
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.objectives import MaeConfig
from vit_jax.train import build as build_lib
from vit_jax.train.initial_state import initial_state

GOLDEN = Path(__file__).parents[2] / "golden" / "mae.npz"


def test_the_encoder_sees_the_kept_patches_alone() -> None:
    objective = _objective()
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    image = jax.random.normal(jax.random.key(1), (1, 32, 32, 3))
    kept = jnp.asarray([[5, 0, 9]])

    apply = jax.jit(objective.apply, static_argnames="train")

    def tokens(image: jax.Array) -> np.ndarray:
        found, _ = apply(params, {}, image, jax.random.key(0), train=True, kept=kept)
        return np.asarray(found.tokens)

    assert tokens(image).shape == (1, 4, 48)
    other = image.at[:, 24:].set(7.0)  # patches 12 to 15
    np.testing.assert_array_equal(tokens(image), tokens(other))
    assert (tokens(image) != tokens(image.at[:, 8:16, 8:16].set(7.0))).any()


def test_weights_are_started_by_the_authors_rules() -> None:
    objective = _objective(_model(dim=192, mlp_dim=768))
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    qkv = np.asarray(params["blocks"]["attn"]["qkv"]["kernel"])
    limit = np.sqrt(6 / (192 + 3 * 192))
    assert limit * 0.99 < np.abs(qkv).max() <= limit
    kernel = np.asarray(params["patch_embed"]["kernel"])
    limit = np.sqrt(6 / (8 * 8 * 3 + 192))
    assert limit * 0.99 < np.abs(kernel).max() <= limit
    assert np.asarray(params["cls_token"]).std() == pytest.approx(0.02, rel=0.2)
    assert not np.asarray(params["blocks"]["mlp"]["fc1"]["bias"]).any()


def test_reconstructions_keep_what_was_seen() -> None:
    objective = _objective()
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), np.uint8)
    batch = {"image": jnp.asarray(image)}
    masked, filled = jax.jit(objective.reconstructions)({"params": params}, batch)
    grey = np.isclose(np.asarray(masked), 0.5, atol=1e-6).all(axis=-1)
    assert grey.reshape(2, 4, 8, 4, 8).all(axis=(2, 4)).sum() == 2 * 12
    seen = ~grey
    np.testing.assert_allclose(np.asarray(filled)[seen], image[seen] / 255, atol=1e-6)
    # With norm_pix a prediction of zero is the mean colour of the true patch.
    zero = {**params, "decoder_pred": jax.tree.map(jnp.zeros_like, params["decoder_pred"])}
    _, filled = jax.jit(objective.reconstructions)({"params": zero}, batch)
    y, x = np.argwhere(grey[0, ::8, ::8])[0] * 8
    patch = np.asarray(filled)[0, y : y + 8, x : x + 8]
    np.testing.assert_allclose(patch, image[0, y : y + 8, x : x + 8].mean() / 255, atol=1e-5)


def test_evaluation_hides_an_image_alike_in_any_batch() -> None:
    objective = _objective()
    params, _ = jax.jit(objective.init)(jax.random.key(0))
    image = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    whole = jax.jit(objective.example_losses)({"params": params}, {"image": jnp.asarray(image)})
    part = jax.jit(objective.example_losses)({"params": params}, {"image": jnp.asarray(image[1:])})
    np.testing.assert_allclose(whole[1:], part, rtol=1e-5)


def test_a_full_file_starts_the_decoder_too(tmp_path: Path) -> None:
    with np.load(GOLDEN) as file:
        arrays = {k[2:]: file[k] for k in file.files if k.startswith("w/")}
    save_file(arrays, tmp_path / "full.safetensors")
    objective = MaeConfig(decoder_dim=32, decoder_depth=1, decoder_heads=2)
    cfg = Config(model=_model(), objective=objective, duration="1 steps", evals={})
    cfg.data.batch_size, cfg.init.weights = 4, f"timm:{tmp_path}/full.safetensors"
    mesh = sharding.make_mesh(MeshConfig(data=1))
    with jax.set_mesh(mesh):
        state, told = initial_state(cfg, build_lib.build(cfg, 8), mesh)
    assert "started anew" not in told
    np.testing.assert_array_equal(state.params["mask_token"], arrays["mask_token"])
    kernel = state.params["decoder_pred"]["kernel"]
    np.testing.assert_array_equal(kernel, arrays["decoder_pred.weight"].T)
    table = {"mask_token", "decoder_pred", "patch_embed", "blocks", "decoder_blocks"}
    assert table <= state.params.keys()
    # A decoder of another size: the encoder starts from the file, the decoder anew.
    cfg.objective = MaeConfig(decoder_dim=16, decoder_depth=1, decoder_heads=2)
    with jax.set_mesh(mesh):
        _, told = initial_state(cfg, build_lib.build(cfg, 8), mesh)
    assert "started anew: params/decoder_blocks/" in told
