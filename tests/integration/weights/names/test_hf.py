# SPDX-License-Identifier: Apache-2.0
"""transformers 5.23's own outputs, stored with its weights (tests/golden/hf_*)."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from vit_jax import models, weights
from vit_jax.export import transformers
from vit_jax.weights.config import ResizeRule
from vit_jax.weights.published import describe

GOLDEN = Path(__file__).parents[3] / "golden"


class Stored(NamedTuple):
    theirs: str  # in the .npz
    ours: str  # of an Output
    fields: dict[str, Any] = {}  # noqa: RUF012  (a tuple's default)
    length: bool = False  # theirs have length 1


CASES = {
    "vit": Stored("logits", "logits"),
    "dinov2": Stored("tokens", "tokens"),
    "ijepa": Stored("tokens", "tokens"),
    "siglip": Stored("pooler", "features"),
    "aimv2_head": Stored("pooler", "features"),
    "aimv2_native": Stored("tokens", "tokens", {"image_size": (21, 35)}),
    "clip": Stored("image_embeds", "logits", {"num_classes": 24}, length=True),
}


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_transformers(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    for source, file in ((".safetensors", "model.safetensors"), (".config.json", "config.json")):
        shutil.copy(GOLDEN / f"hf_{name}{source}", tmp_path / file)
    cfg = models.with_fields(describe.network(f"hf:{tmp_path}").model, case.fields)
    variables = jax.tree.map(jnp.asarray, weights.load(f"hf:{tmp_path}", cfg))
    stored, apply = np.load(GOLDEN / f"hf_{name}.npz"), models.create(cfg).apply
    for run in (apply, jax.jit(apply)):
        with jax.default_matmul_precision("highest"):
            out = np.asarray(getattr(run(variables, jnp.asarray(stored["input"])), case.ours))
        if case.length:
            out = out / np.linalg.norm(out, axis=-1, keepdims=True)
        np.testing.assert_allclose(out, stored[case.theirs], atol=5e-5, rtol=0)
        assert out.std() > 1e-2


def test_ijepa_goes_both_ways_and_to_other_sizes(tmp_path: Path) -> None:
    for source, file in ((".safetensors", "model.safetensors"), (".config.json", "config.json")):
        shutil.copy(GOLDEN / f"hf_ijepa{source}", tmp_path / file)
    name = f"hf:{tmp_path}"
    cfg = describe.network(name).model
    assert transformers.kind(cfg) == "ijepa"
    state, file = transformers.to_hf(weights.load(name, cfg), cfg), GOLDEN / "hf_ijepa.safetensors"
    stored = load_file(file)
    assert state.keys() == stored.keys()
    for key, value in stored.items():
        np.testing.assert_array_equal(state[key], value, err_msg=key)
    theirs = json.loads((GOLDEN / "hf_ijepa.config.json").read_text())
    written = transformers.config(cfg, ())
    assert {key: theirs[key] for key in written} == written
    # transformers resizes the table without antialias, as the official loaders of DeiT do.
    wide = models.with_fields(cfg, {"image_size": (24, 48)})
    variables = weights.load(name, wide, resize=ResizeRule.OFFICIAL)
    golden = np.load(GOLDEN / "hf_ijepa.npz")
    with jax.default_matmul_precision("highest"):
        tokens = jax.jit(models.create(wide).apply)(variables, jnp.asarray(golden["other"])).tokens
    np.testing.assert_allclose(tokens, golden["other_tokens"], atol=5e-5, rtol=0)


def test_naflex_positions_are_those_of_an_images_own_shape(tmp_path: Path) -> None:
    # One file for images of any shape: 4 x 4 positions, bilinear and antialiased to another grid.
    config = json.loads((GOLDEN / "hf_siglip2.config.json").read_text())
    tower = load_file(GOLDEN / "hf_siglip2.safetensors")
    pair = {f"vision_model.{key}": value for key, value in tower.items()}
    kinds = {
        "alone": (config, tower),
        "pair": ({"model_type": "siglip2", "vision_config": config}, pair),
    }
    for name, (tree, tensors) in kinds.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(tree))
        save_file(tensors, tmp_path / name / "model.safetensors")
    stored = np.load(GOLDEN / "hf_siglip2.npz")
    for i in (0, 2):  # 3 x 4 and 1 x 7 patches
        rows, columns = map(int, stored["grids"][i])
        size = {"image_size": (4 * rows, 4 * columns)}
        found = []
        for name in kinds:
            ref = f"hf:{tmp_path / name}"
            cfg = models.with_fields(describe.network(ref).model, size)
            found.append(weights.load(ref, cfg))
        alone, both = (variables["params"]["pos_embed"] for variables in found)
        np.testing.assert_array_equal(alone, both)
        patches = stored["patches"][i, : rows * columns].reshape(rows, columns, 4, 4, 3)
        image = jnp.asarray(patches.swapaxes(1, 2).reshape(1, 4 * rows, 4 * columns, 3))
        with jax.default_matmul_precision("highest"):
            out = jax.jit(models.create(cfg).apply)(found[0], image)
        np.testing.assert_allclose(out.features[0], stored["pooler"][i], atol=5e-5, rtol=0)
        tokens = stored["tokens"][i, : rows * columns]
        np.testing.assert_allclose(out.tokens[0], tokens, atol=5e-5, rtol=0)
