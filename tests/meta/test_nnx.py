# SPDX-License-Identifier: Apache-2.0
"""The blocks of docs/nnx.md run: a model trains in the loops of others and comes back."""

import contextlib
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

import vit_jax

PAGE = Path(__file__).parents[2] / "docs" / "nnx.md"
SECTIONS = PAGE.read_text().split("\n## ")
TINY_RESNET = {"depths": (1,), "widths": (16,), "stem_width": 8, "image_size": 8, "channels": 1}

pytestmark = pytest.mark.slow


def run(title: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the blocks of a section after `names`, which stay as they are."""
    (section,) = [each for each in SECTIONS if each.startswith(title)]
    names = dict(names)
    for block in re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL):
        exec(block, names)
    return names


@pytest.fixture(scope="module")
def start() -> dict[str, Any]:
    return run("# In an NNX", {})


def check_trained(names: dict[str, Any]) -> None:
    """It knows more digits than chance, and the model that it came from is as it was."""
    images, labels = names["images"], names["labels"]
    assert np.mean(np.argmax(names["trained"](images), -1) == labels) > 0.5
    assert not names["model"].params["head"]["kernel"].any()  # zero_head


def leaves(tree: Any) -> dict[str, np.ndarray]:
    return {
        jax.tree_util.keystr(path): np.asarray(x) for path, x in jax.tree.leaves_with_path(tree)
    }


@pytest.fixture(scope="module")
def loop(start: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    with contextlib.chdir(tmp_path_factory.mktemp("nnx")):
        return run("Flax NNX", start)


def test_nnx(loop: dict[str, Any], subtests: pytest.Subtests) -> None:
    names = loop
    images, normal, module = names["images"], names["normal"], names["module"]
    check_trained(names)
    assert np.mean(names["losses"][-5:]) < 0.7 * names["losses"][0]
    with subtests.test("what comes out is what went on in the loop"):
        logits = names["trained"](images)
        np.testing.assert_allclose(module(normal).logits, logits, atol=1e-5)
        np.testing.assert_array_equal(names["same"](images), logits)
        assert names["answer"][0][0].class_id == int(logits[0].argmax())
    with subtests.test("what goes in comes out"):
        again = names["as_model"](names["as_nnx"](names["model"], normal[:1]), names["model"])
        jax.tree.map(np.testing.assert_array_equal, again.variables, names["model"].variables)
    with subtests.test("a stack is one array"):
        assert module.blocks["attn"]["qkv"]["kernel"].shape == (2, 32, 96)
    with subtests.test("dropout moves on"):
        count = int(names["rngs"].dropout.count[...])
        assert count == len(names["losses"])


def test_nnx_of_batch_norm_with_the_head_alone(
    loop: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = loop
    wrt = nnx.All(nnx.Param, nnx.PathContains("head"))
    monkeypatch.setitem(names, "wrt", wrt)
    model = vit_jax.create_model("resnet50", num_classes=10, **TINY_RESNET)
    module = names["as_nnx"](model, names["normal"][:1])
    before = leaves(model.variables)
    optimizer = nnx.Optimizer(module, optax.adam(1e-2), wrt=wrt)
    for batch in names["batches"](3):
        names["step"](module, optimizer, names["rngs"], *batch)
    after = names["as_model"](module, model)
    changed = {
        path for path, value in leaves(after.variables).items() if (value != before[path]).any()
    }
    assert changed == {
        path for path in before if "batch_stats" in path or path.startswith("['params']['head']")
    }
    images = names["images"][:8]
    expected = module(vit_jax.normalize(images, model)).logits
    np.testing.assert_allclose(after(images), expected, atol=1e-5)


def test_penzai(start: dict[str, Any]) -> None:
    pytest.importorskip("penzai", reason="penzai is not installed")
    names = run("Penzai", start)
    check_trained(names)
    assert np.mean(names["losses"][-5:]) < 0.7 * names["losses"][0]
    assert names["kernels"] == 6
    before = leaves(names["model"].params)
    after = leaves(names["trained"].params)
    frozen = {path for path, value in after.items() if (value == before[path]).all()}
    assert frozen == {path for path in before if "patch_embed" in path}


def test_kauldron(start: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kauldron", reason="kauldron is not installed")
    monkeypatch.chdir(tmp_path)
    with jax.numpy_rank_promotion("allow"):
        names = run("Kauldron", start)
    check_trained(names)
