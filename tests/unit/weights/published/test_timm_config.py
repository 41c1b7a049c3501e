# SPDX-License-Identifier: Apache-2.0
"""timm's config.json and this package's export.json name a network, or are refused in a line."""

import dataclasses
import json
from typing import Any

import pytest

from tests.refusals import Told, refused_as
from tests.unit.inference.exported import trained
from tests.unit.models.tiny import TINY
from vit_jax import models
from vit_jax.data import TransformConfig
from vit_jax.errors import UserError
from vit_jax.export.model import Format, _description, hub_config
from vit_jax.export.quantize import WeightDType
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.losses import Loss
from vit_jax.weights.published import table as published
from vit_jax.weights.published import timm_config


def model(architecture: str, **values: Any) -> Any:
    tree = {"architecture": architecture, "num_classes": 10, **values}
    return timm_config.model(tree, "x/config.json")


def test_every_published_architecture_but_one_is_known() -> None:
    names = {name.partition(".")[0] for name in published._table()[0]}
    known = timm_config.architectures()
    assert names - known.keys() == {"vit_intern300m_patch14_448"}  # it has no norm at its end
    for name in known:
        size = models.pair(models.VARIANTS[known[name][0]].image_size, "image_size")
        cfg = model(name, pretrained_cfg={"input_size": [3, *size]})
        assert models.create(cfg) is not None
        assert cfg.num_classes == 10


def test_every_published_name_is_a_network_with_its_classes() -> None:
    refused = set()
    for name, about in published._table()[0].items():
        found = timm_config.by_name(name)
        if found is None:
            refused.add(name.partition(".")[0])
            continue
        cfg, told = found
        assert (cfg.num_classes, told["name"]) == (about["num_classes"], name)
        assert models.pair(cfg.image_size, "image_size") == tuple(about["input_size"][1:])
    assert refused == {"vit_intern300m_patch14_448"}
    in21k = models.variant("vit_b16", gelu=Gelu.ERF, num_classes=21_843)
    for name in ("vit_base_patch16_224.augreg_in21k", "timm/vit_base_patch16_224.augreg_in21k"):
        assert timm_config.by_name(name)[0] == in21k
    default = timm_config.by_name("vit_base_patch16_384")[1]["name"]
    assert default == "vit_base_patch16_384.augreg_in21k_ft_in1k"
    assert timm_config.by_name("vit_b16") is timm_config.by_name("nothing.at_all") is None
    with pytest.raises(UserError, match=r"unknown weights of timm's .* did you mean 'deit_"):
        timm_config.by_name("deit_base_patch16_224.fb_in1")


def test_published_networks_are_the_documented_ones() -> None:
    dinov2 = model(
        "vit_small_patch14_dinov2", num_classes=0, pretrained_cfg={"input_size": [3, 518, 518]}
    )
    fields = {"gelu": Gelu.ERF, "layer_scale": 1e-5, "num_classes": 0, "image_size": (518, 518)}
    assert dinov2 == models.variant("vit_s14", **fields)
    assert model("deit_base_patch16_224") == models.variant("deit_b16", num_classes=10)
    assert model("vit_base_patch32_siglip_256").pool is Pool.MAP


def test_arguments_change_a_vit() -> None:
    args = {
        "img_size": [32, 48],
        "patch_size": [8, 8],
        "embed_dim": 24,
        "depth": 3,
        "num_heads": 2,
        "mlp_ratio": 2.5,
        "act_layer": "gelu_tanh",
        "init_values": 0.1,
        "global_pool": "avg",
        "no_embed_class": True,
        "pos_embed": "none",
        "pre_norm": True,
        "drop_path_rate": 0.3,
    }
    found = model("vit_base_patch16_224", model_args=args)
    assert (found.image_size, found.patch, found.dim) == ((32, 48), (8, 8), 24)
    assert (found.depth, found.num_heads, found.mlp_dim) == (3, 2, 60)
    assert (found.gelu, found.layer_scale, found.pool) == (Gelu.TANH, 0.1, Pool.GAP)
    assert (found.pos_embed, found.pos_embed_prefix) == (PosEmbed.NONE, False)
    assert (found.pre_norm, found.patch_bias, found.drop_path_rate) == (True, False, 0.0)


@pytest.mark.parametrize("name", ["vit", "deit"])
def test_arguments_are_those_that_an_export_writes(name: str) -> None:
    cfg = TINY[name]
    found = timm_config.model(hub_config(trained(cfg)), "x/config.json")
    free = ("init", "zero_head", "drop_path_rule", "scan_unroll")
    assert dataclasses.replace(found, **{key: getattr(cfg, key) for key in free}) == cfg


BAD = [
    ({"architecture": "vit_base_patch16_225"}, "did you mean 'vit_base_patch16_224'"),
    ({"architecture": 7}, "unknown architecture in x/config.json: '7'"),
    ({"num_classes": -1}, r"x/config.json: num_classes=-1 must be a whole number"),
    ({"pretrained_cfg": []}, None),
    ({"pretrained_cfg": 3}, "pretrained_cfg=3 must be an object"),
    ({"pretrained_cfg": {"input_size": [3, 224]}}, r"input_size=\[3, 224\] must be"),
    ({"pretrained_cfg": {"input_size": [3, 1e9, 2]}}, "must be .channels, height, width"),
    ({"model_args": {"depht": 3}}, "unknown model_args in x/config.json: 'depht'; did you mean"),
    ({"model_args": {"depth": "deep"}}, ("settings.fields._wrong", "model.depth")),
    ({"model_args": {"act_layer": "relu"}}, "act_layer='relu' is not known here"),
    ({"model_args": {"act_layer": []}}, "act_layer=.* is not known here"),
    ({"model_args": {"mlp_ratio": "4"}}, "mlp_ratio='4' must be a number"),
    (
        {"architecture": "swin_tiny_patch4_window7_224", "model_args": {"depths": [1]}},
        "export.json",
    ),
]


@pytest.mark.parametrize("values, message", BAD)
def test_what_cannot_be_is_named(values: dict[str, Any], message: Told | None) -> None:
    values = {"architecture": "vit_base_patch16_224", **values}
    if message is None:
        model(**values)
        return
    with refused_as(message) as error:
        model(**values)
    assert "\n" not in str(error.value)


def test_classes_have_the_names_of_the_file() -> None:
    def names(count: int, **tree: Any) -> tuple[str, ...]:
        return timm_config.class_names(tree, count, "x/config.json")

    assert names(2, label_names=["cat", "dog"]) == ("cat", "dog")
    words = {"label_names": ["n02123045", "n1"], "label_descriptions": {"n1": "one, first"}}
    assert names(2, pretrained_cfg=words) == ("tabby, tabby cat", "one, first")
    assert names(2) == names(0, label_names=["x"]) == ()
    with pytest.raises(UserError, match="label_names must name 3 classes; it names 2"):
        names(3, label_names=["cat", "dog"])
    with pytest.raises(UserError, match="label_names must name"):
        names(1, label_names=[7])


def exported(**values: Any) -> timm_config.Exported | None:
    cfg = dataclasses.replace(TINY["vit"], mup_base_dim=8, mup_base_heads=2, patch_bias=False)
    model = trained(cfg, loss=Loss.SIGMOID)
    tree = json.loads(json.dumps(_description(model, Format.TIMM, WeightDType.FLOAT32)))
    return timm_config.exported(tree | values, "x/export.json")


def test_an_export_is_what_it_was() -> None:
    found = exported()
    assert found is not None
    # As its files have it: the width's factors are in the weights, and a bias of zeros.
    assert found.model == TINY["vit"]
    assert (found.loss, found.preprocessing.mean) == (Loss.SIGMOID, (0.5, 0.4, 0.3))
    assert found.preprocessing.transform == TransformConfig()
    assert exported(format="onnx") is None


@pytest.mark.parametrize(
    "values",
    [
        {"model": {"family": "Nothing"}},
        {"model": 3},
        {"input": {}},
        {"input": {"crop": "center", "crop_ratio": 2.0}},
        {"loss": "hinge"},
    ],
)
def test_what_is_no_export_of_ours_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"x/export\.json"):
        exported(**values)


def test_some_arguments_alone_go_with_those_of_the_architecture() -> None:
    def args(name: str, **model_args: Any) -> Any:
        return timm_config.model({"architecture": name, "model_args": model_args}, "x")

    base, so = "vit_base_patch16_224", "vit_so400m_patch14_siglip_224"
    found = args(base, embed_dim=384, num_heads=6)
    assert (found.dim, found.mlp_dim, found.depth) == (384, 1536, 12)
    assert args(so, embed_dim=576, num_heads=8).mlp_dim == int(576 * 3.7362)
    assert (args(base, depth=3).depth, args(base, depth=3).mlp_dim) == (3, 3072)
    assert args(base, embed_dim=192, mlp_ratio=3).mlp_dim == 576
    # One layer gives gate and value: timm's ratio is of both.
    giant = args("vit_giant_patch14_dinov2", embed_dim=96, num_heads=4)
    assert giant.mlp_dim == int(96 * 2.66667 * 2) // 2
    # timm normalises after the mean, but where an architecture says otherwise.
    assert args(base, global_pool="avg").fc_norm
    assert args(base, global_pool="avg", fc_norm=None).fc_norm
    assert not args(base, global_pool="avg", fc_norm=False).fc_norm
    assert not args(base, global_pool="token").fc_norm
