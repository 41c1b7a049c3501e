# SPDX-License-Identifier: Apache-2.0
"""What docs/models.md and the table of sizes say of a published name is timm's network of it.

Both are built without weights, and every module of one is compared with its twin of the other: its
class, its plain attributes (heads, epsilons, what is pooled) and the shapes of its parameters. The
GELUs are compared where the documentation says how timm runs the network.
"""

import dataclasses
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.parity.test_export import trained_shapes
from tests.parity.torch_models import timm, torch
from tests.unit.models.families.test_vit import OPTIONS, ROWS, TABLE, published
from tests.unit.models.test_backbones import BACKBONES
from vit_jax import models
from vit_jax.export.model import hub_config
from vit_jax.models import ModelConfig, ViTConfig
from vit_jax.models.families.hybrid import Standardise
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.weights.apply import fill
from vit_jax.weights.files import WeightsFile
from vit_jax.weights.names import timm as timm_names
from vit_jax.weights.published import timm_config

DOCS = Path(__file__).parents[2] / "docs" / "models.md"
NAMES = {
    "variant": models.variant,
    "Pool": Pool,
    "PosEmbed": PosEmbed,
    "Gelu": Gelu,
    "Standardise": Standardise,
}


def documented() -> dict[str, tuple[ModelConfig, str]]:
    """Return the rows of "Which published variant uses which", by the name in their first cell.

    A row is the config and the whole first cell.
    """
    section = DOCS.read_text().split("## Which published variant uses which")[1].split("\n## ")[0]
    line = re.compile(r"^\|([^|]*`([^`|]+)`[^`|]*)\| `(variant\(.*\))` \|$", re.MULTILINE)
    rows = line.findall(section)
    assert len(rows) == section.count("| `variant(")
    return {name: (eval(code, NAMES), cell) for cell, name, code in rows}


def is_timms(name: str) -> bool:
    return timm.is_model(name.split(".")[0])


DOCUMENTED = documented()
_POOLS = {Pool.CLS: "token", Pool.GAP: "avg", Pool.MAP: "map"}


def build(name: str, **args: Any) -> "torch.nn.Module":
    # A meta tensor has no values; to draw them regardless would take most of the time.
    drawn = [name for name in vars(torch.nn.init) if re.fullmatch(r"[a-z]\w*_", name)]
    undrawn = dict.fromkeys(drawn, lambda tensor, *_, **__: tensor)
    with (
        torch.device("meta"),
        mock.patch.multiple(torch.nn.init, **undrawn),
        mock.patch.object(timm.layers.weight_init, "_trunc_normal_", undrawn["trunc_normal_"]),
    ):
        return timm.create_model(name, **args)


def facts(model: "torch.nn.Module", with_acts: bool) -> dict[str, Any]:
    plain = (bool, int, float, str, type(None), tuple)
    return {
        name: {
            "class": act(module) if name.endswith(".act") else type(module).__name__,
            # PyTorch's GELU and timm's are one.
            **{
                k: v for k, v in vars(module).items() if isinstance(v, plain) and k != "approximate"
            },
            **{k: tuple(p.shape) for k, p in module.named_parameters(recurse=False)},
        }
        for name, module in model.named_modules()
        if with_acts or not name.endswith(".act")
    }


def act(module: "torch.nn.Module") -> str:
    is_tanh = getattr(module, "approximate", "none") == "tanh"
    return "GELUTanh" if is_tanh else type(module).__name__


def assert_is(cfg: ModelConfig, theirs: "torch.nn.Module", *, with_acts: bool) -> None:
    config = hub_config(trained_shapes(cfg))
    ours = build(config["architecture"], num_classes=cfg.num_classes, **config["model_args"])
    assert facts(ours, with_acts) == facts(theirs, with_acts)


def assert_fits(cfg: ModelConfig, theirs: "torch.nn.Module") -> None:
    """Check every shape, and what shapes do not say: the same network may have other modules."""
    shapes = {key: tuple(value.shape) for key, value in theirs.state_dict().items()}
    found = timm_names.with_timm_names(WeightsFile("theirs", shapes, lambda key: None), cfg)
    entries = timm_names.entries(cfg)
    fill(entries, found, is_ignored=timm_names.is_ignored, only_check=True)
    assert isinstance(cfg, ViTConfig)
    assert _POOLS[cfg.pool] == theirs.global_pool
    norms = {each.eps for each in theirs.modules() if isinstance(each, torch.nn.LayerNorm)}
    assert norms == {cfg.norm_eps}
    assert theirs.blocks[0].attn.num_heads == cfg.num_heads


def test_documented_network_is_timms(subtests: pytest.Subtests) -> None:
    for name in [n for n in DOCUMENTED if is_timms(n)]:
        with subtests.test(name):
            cfg, cell = DOCUMENTED[name]
            theirs = build(name, num_classes=cfg.num_classes)
            assert_is(cfg, theirs, with_acts="timm" in cell)


def test_backbone_is_timms(subtests: pytest.Subtests) -> None:
    for name in BACKBONES:
        with subtests.test(name):
            cfg, theirs = models.variant(name, num_classes=0), BACKBONES[name]["timm"]
            if "dinov3" in name:
                cfg.pool, cfg.image_size = Pool.GAP, (256, 256)  # timm's defaults
            if cfg.layer_scale:
                cfg.layer_scale = 1e-5  # to start from
            network = build(theirs, num_classes=0)
            if getattr(cfg, "native", False):
                assert_fits(cfg, network)
            else:
                assert_is(cfg, network, with_acts="siglip" not in name)
            assert sum(p.numel() for p in network.parameters()) == BACKBONES[name]["params"]


def test_all_but_googles_own_names_are_timms() -> None:
    others = [name for name in DOCUMENTED if not is_timms(name)]
    assert others == ["imagenet21k/ViT-B_16.npz", "vit_s16_i1k"]


def test_counted_network_is_timms(subtests: pytest.Subtests) -> None:
    for name in [n for n in ROWS if re.sub(r"_\d{3}$", "", n) in OPTIONS]:
        with subtests.test(name):
            side = TABLE[name]["img_size"]
            cfg = dataclasses.replace(published(name), gelu=Gelu.ERF, image_size=(side,))
            assert_is(cfg, build(name, num_classes=cfg.num_classes), with_acts=True)


def test_architecture_is_timms(subtests: pytest.Subtests) -> None:
    for name in timm_config.architectures():
        with subtests.test(name):
            theirs = timm.get_pretrained_cfg(name)
            size = theirs.input_size if theirs else (3, 224, 224)
            tree = {
                "architecture": name,
                "num_classes": 5,
                "pretrained_cfg": {"input_size": list(size)},
            }
            cfg = timm_config.model(tree, "config.json")
            theirs = build(name, num_classes=5)
            packed = models.family(cfg).timm_form(cfg).packed or getattr(cfg, "native", False)
            if not isinstance(theirs, timm.models.eva.Eva) and not packed:
                assert_is(cfg, theirs, with_acts=True)
            else:
                assert_fits(cfg, theirs)


def siglips() -> list[str]:
    return timm.list_models("vit_*siglip*")


def test_gelu_of_siglip_is_the_one_that_is_said(subtests: pytest.Subtests) -> None:
    for name in siglips():
        with subtests.test(name):
            erf = re.match(r"vit_(so400m_patch14|base_patch16|large_patch16(?!.*512))_siglip", name)
            cfg = published(name)
            assert isinstance(cfg, ViTConfig)
            assert cfg.gelu is Gelu.TANH  # Google's
            found = act(build(name, depth=1).get_submodule("blocks.0.mlp.act"))
            assert found == ("GELU" if erf else "GELUTanh")
