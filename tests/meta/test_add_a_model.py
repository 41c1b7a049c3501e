# SPDX-License-Identifier: Apache-2.0
"""docs/add_a_model.md is true: its file, registered as it says, counts, trains, goes with verbs."""

import dataclasses
import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.integration.train import test_families
from tests.refusals import refused_by
from tests.unit.inference.exported import assert_close, images, trained
from vit_jax import inference, models, trees, weights
from vit_jax.errors import UserError
from vit_jax.export import model as export
from vit_jax.export import stablehlo as export_stablehlo
from vit_jax.export.quantize import WeightDType
from vit_jax.inference.evaluate import check_sizes
from vit_jax.visual import saliency
from vit_jax.visual.attention import head_maps
from vit_jax.weights import export as weights_export
from vit_jax.weights.names import google

PAGE = Path(__file__).parents[2] / "docs" / "add_a_model.md"


@pytest.fixture
def resmlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Do what the page says: write the file, register it, name its weights."""
    text = PAGE.read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 100
    (tmp_path / "resmlp.py").write_text(code)
    spec = importlib.util.spec_from_file_location(
        "vit_jax.models.families.resmlp", tmp_path / "resmlp.py"
    )
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    (line,) = re.findall(r"^    (\"ResMLPConfig\": .*),$", text, re.MULTILINE)
    for name, file in json.loads(f"{{{line}}}").items():
        monkeypatch.setitem(models.FAMILIES, name, file)
    return module


def tiny(**fields: object) -> models.ModelConfig:
    small = {"dim": 16, "depth": 2, "mlp_dim": 32, "patch": (4, 4), "image_size": (8, 12)}
    return models.variant("resmlp_s12", num_classes=3, scan_unroll=1, **small, **fields)


def test_counts(resmlp: ModuleType) -> None:
    # timm's resmlp_12_224 and resmlp_24_224.
    for name, count in (("resmlp_s12", 15_350_872), ("resmlp_s24", 30_020_680)):
        params = models.abstract(models.variant(name))["params"]
        assert trees.num_params(params) == count


@pytest.mark.slow
def test_trains_on_any_mesh(resmlp: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(test_families.TINY, "resmlp", tiny())
    test_families.test_a_mesh_of_all_axes_with_remat_computes_the_same("resmlp")


def test_weights_go_out_and_in(resmlp: ModuleType) -> None:
    cfg = tiny()
    rng = np.random.default_rng(0)
    flat = {
        name: rng.normal(size=leaf.shape).astype(np.float32)
        for name, leaf in trees.named_leaves(models.abstract(cfg))
    }
    state = weights.to_timm(trees.nest(flat), cfg)
    assert {"stem.proj.weight", "blocks.1.ls1", "norm.alpha", "head.bias"} <= set(state)
    back = dict(trees.named_leaves(weights.from_timm(state, cfg)))
    assert back.keys() == flat.keys()
    for name, value in flat.items():
        np.testing.assert_array_equal(back[name], value)


def test_equals_timm(resmlp: ModuleType) -> None:
    from tests.parity.harness import check_forward
    from tests.parity.torch_models import timm

    cfg = dataclasses.replace(tiny(), drop_path_rate=0.0)
    mixer = timm.models.mlp_mixer
    model = mixer.MlpMixer(
        num_classes=3,
        img_size=cfg.image_size,
        patch_size=cfg.patch,
        embed_dim=cfg.dim,
        num_blocks=cfg.depth,
        mlp_ratio=cfg.mlp_dim / cfg.dim,
        block_layer=lambda *args, **kwargs: mixer.ResBlock(*args, init_values=0.1, **kwargs),
        norm_layer=mixer.Affine,
    )
    check_forward(model, cfg)


def test_a_published_file_predicts(resmlp: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "resmlp.safetensors"
    ours = trained(tiny())
    weights_export.save(file, weights.to_timm(ours.variables, ours.model))
    found = inference.load(f"timm:{file}", model=tiny())
    assert found.mean == (0.485, 0.456, 0.406)
    assert "a guess by the family" in inference.describe_input(found)
    expected = inference.probabilities(
        inference.make_forward(found)(images(ours, 1)).logits, found.loss
    )
    (best, *_), *_ = inference.predict(found, images(ours, 1), top=3)
    assert best.class_id == int(expected.argmax())


def test_looks_at_each_patch(resmlp: ModuleType) -> None:
    model = trained(tiny())
    output, heat = saliency.make_saliency(model)(images(model, 2))
    assert saliency.method(model.model) == "class activation map"
    assert heat.shape == (2, 2, 3)
    # A class activation map is the logit, but for the bias.
    bias = model.variables["params"]["head"]["bias"][np.argmax(output.logits, axis=1)]
    top = np.max(output.logits, axis=1)
    np.testing.assert_allclose(np.mean(heat, axis=(1, 2)) + bias, top, rtol=1e-4)
    assert head_maps(model.model, model.variables["params"], {}, (8, 12)) == []


def test_is_exported_or_refused_in_one_line(resmlp: ModuleType) -> None:
    model = trained(tiny())
    run = export_stablehlo.runner(*export_stablehlo.serialize(model, model.variables))
    expected = np.asarray(inference.make_forward(model)(images(model)).logits)
    assert_close(np.asarray(run(images(model))), expected)
    refused = "ResMLP names no architecture of timm's"
    with pytest.raises(UserError, match=refused):
        export.check(model, export.Format.TIMM, WeightDType.FLOAT32)
    with refused_by("weights.names.google._layout") as caught:
        google.prefix(model.model, {})
    assert "ResMLP" in str(caught.value)
    with refused_by("inference.evaluate.check_sizes", "--sizes") as caught:
        check_sizes(model, model.transform, (16,))
    assert "ResMLP" in str(caught.value)


def test_without_timms_names_its_files_are_refused_in_one_line(
    resmlp: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    nameless = dataclasses.replace(resmlp.FAMILY, timm_names=None)
    monkeypatch.setattr(resmlp, "FAMILY", nameless)
    with pytest.raises(UserError, match=r"^there are no timm names for ResMLP; give its FAMILY"):
        weights.to_timm(models.abstract(tiny()), tiny())
