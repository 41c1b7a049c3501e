# SPDX-License-Identifier: Apache-2.0
"""Google's .npz files: its own models' logits, and every layout, by an independent writer."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.weights import google_writer as writer
from vit_jax import models, weights
from vit_jax.errors import UserError
from vit_jax.models.layers.pool import Pool

VIT = models.ViTConfig(
    image_size=(8, 12), patch=(4,), dim=12, depth=2, num_heads=3, mlp_dim=20, num_classes=5
)
GAP = dataclasses.replace(VIT, pool=Pool.GAP, class_token=False)
MAP = dataclasses.replace(VIT, pool=Pool.MAP, class_token=False)
MIXER = models.MixerConfig(
    image_size=(8,), patch=(4,), dim=12, depth=2, token_mlp_dim=6, channel_mlp_dim=20, num_classes=5
)


def made(cfg: models.ModelConfig, seed: int = 0) -> Any:
    return writer.random_variables(models.abstract(cfg), seed)


def save(path: Path, arrays: dict[str, np.ndarray], prefix: str = "") -> str:
    np.savez(path / "x.npz", **{prefix + key: value for key, value in arrays.items()})
    return f"npz:{path / 'x.npz'}"


def check_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def logits(cfg: models.ModelConfig, variables: Any, image: np.ndarray) -> jax.Array:
    with jax.default_matmul_precision("highest"):
        return jax.jit(models.create(cfg).apply)(variables, jnp.asarray(image)).logits


def refused(
    path: Path,
    arrays: dict[str, np.ndarray],
    cfg: models.ModelConfig,
    code: str = "",
    **options: Any,
) -> str:
    with refused_by(code) if code else pytest.raises(UserError) as caught:
        weights.load(save(path, arrays), cfg, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_parameter_of_a_mixer(tmp_path: Path) -> None:
    variables = made(MIXER)
    check_equal(weights.load(save(tmp_path, writer.mixer(variables["params"])), MIXER), variables)


@pytest.mark.parametrize(
    "prefix, beside",
    [
        ("", ["opt/0/count", "opt/0/mu/head/kernel", "extra/step"]),
        ("params/", ["opt/0/mu/params/head/kernel", "step"]),
        ("opt/target/", ["opt/state/step", "opt/state/param_states/head/kernel/grad_ema"]),
        ("params/img/", ["params/txt/head/kernel", "params/t", "params/b", "opt/0/mu"]),
    ],
)
def test_prefixes_and_what_is_beside_the_network(
    prefix: str, beside: list[str], tmp_path: Path
) -> None:
    variables = made(VIT)
    arrays = writer.vit(variables["params"], VIT.num_heads)
    arrays = {prefix + key: value for key, value in arrays.items()}
    # As many numbers as one likes, and of any type: none of it is read.
    arrays |= {key: np.int64(3) if "step" in key else np.full(9, np.nan) for key in beside}
    check_equal(weights.load(save(tmp_path, arrays), VIT), variables)
    arrays[f"{prefix}Transformer/extra/kernel"] = np.zeros(3)
    message = refused(tmp_path, arrays, VIT, "weights.apply._check_keys")
    assert f"{prefix}Transformer/extra/kernel [3]" in message


def test_bfloat16(tmp_path: Path) -> None:
    variables = made(MAP)
    variables = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), variables)
    arrays = writer.vit(variables["params"], MAP.num_heads, scan=True)
    found = weights.load(save(tmp_path, arrays, "params/"), MAP)
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    check_equal(found, jax.tree.map(lambda x: x.astype(np.float32), variables))


def test_families_without_files_of_google(tmp_path: Path) -> None:
    message = refused(tmp_path, {"x": np.zeros(1)}, models.variant("swin_t"))
    assert "there is no .npz layout for Swin" in message
    assert "timm:FILE" in message


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    variables = made(MIXER)
    save(tmp_path, writer.mixer(variables["params"]))
    check_equal(weights.load("npz:~/x.npz", MIXER), variables)
    for ref in ("nzp:x.npz", "x.npz", "", "https://x.npz"):
        with refused_by("weights.config.split"):
            weights.load(ref, VIT)
    with refused_by("weights.config.split"):
        weights.load("npz:", VIT)
    with refused_by("weights.files.first_bytes"):
        weights.load(f"npz:{tmp_path / 'y.npz'}", VIT)
