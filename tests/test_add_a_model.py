# SPDX-License-Identifier: Apache-2.0
"""docs/add_a_model.md is true: its file, registered as it says, counts, trains and imports."""

import dataclasses
import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.train import test_families
from vit_jax import models, trees, weights
from vit_jax.weights import timm as timm_names

PAGE = Path(__file__).parent.parent / "docs" / "add_a_model.md"


@pytest.fixture
def resmlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Do what the page says: write the file, register it, name its weights."""
    text = PAGE.read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert len(code.splitlines()) <= 100
    (tmp_path / "resmlp.py").write_text(code)
    spec = importlib.util.spec_from_file_location("vit_jax.models.resmlp", tmp_path / "resmlp.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    names = {"resmlp": module, "ResMLPConfig": module.ResMLPConfig}
    family, renames = re.findall(r"^    (\"?ResMLPConfig\"?: .*),$", text, re.MULTILINE)
    for key, value in eval(f"{{{family}}}", names).items():
        monkeypatch.setitem(models._FAMILIES, key, value)
    for key, value in eval(f"{{{renames}}}").items():
        monkeypatch.setitem(timm_names._RENAMES, key, value)
    for name, cfg in module.VARIANTS.items():
        monkeypatch.setitem(models.VARIANTS, name, cfg)
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
