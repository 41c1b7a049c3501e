# SPDX-License-Identifier: Apache-2.0
"""EoMT under transformers' and its authors' names: what stands beside the encoder.

transformers' types `eomt` (DINOv2's encoder) and `eomt_dinov3`. The encoder's own names are those
of a layout of `hf`; its authors' file (tue-mps/eomt, `pytorch_model.bin`) has it below
`network.encoder.backbone.`, under timm's names.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, ViTConfig, facts
from vit_jax.models.dense import eomt
from vit_jax.models.dense.eomt import EomtHead
from vit_jax.models.layers.mlp import Gelu, MlpKind
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.models.layers.rope import Rope
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.layout import Entry, FileTensor, Layout, Shape, renamed, torch_layout
from vit_jax.weights.names import hf, hf_config

KINDS = ("eomt", "eomt_dinov3")  # of transformers
_NO_OBJECT = 0.1  # its weight in the loss, a buffer there
# What a difference to an encoder has no more of than this: the mean size of its norms' scales.
_DIFFERENCE = 0.03


def is_eomt(tree: Mapping[str, Any]) -> bool:
    """Return whether a config.json of transformers' is of an EoMT."""
    return tree.get("model_type") in KINDS


def beside(shapes: Mapping[str, Any], code: str = "hf") -> list[Entry]:
    """List what `shapes`, by our names, has of EoMT, with its place in a file.

    `code` is "hf" for transformers' file, "official" for the authors'.
    """
    own = {name: shapes[name] for name in eomt.BESIDE if name in shapes}
    rules = facts.names("Eomt", code)

    def place(name: str, shape: Shape, _: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        there = torch_layout(name, shape, 1)
        if name.endswith("/conv1/kernel"):  # a transposed convolution is (in, out, rows, columns)
            turned = (*shape[2:], *shape[:2])
            there = Layout(
                turned, lambda w: w.transpose(2, 3, 0, 1), lambda w: w.transpose(2, 3, 0, 1)
            )
        key = re.sub(r"/(kernel|scale)$", "/weight", renamed(name, rules)).replace("/", ".")
        parts = (FileTensor(key, there.shape),)
        return parts, lambda parts: there.decode(parts[0]), lambda value: [there.encode(value)]

    return layout_lib.entries({"params": own}, place)


def head(tree: Mapping[str, Any], shapes: Mapping[str, Shape], source: str) -> EomtHead:
    """Return what EoMT adds to the encoder of a repository.

    Args:
        tree: of its config.json.
        shapes: of its weights, by key.
        source: config.json's name in messages.

    Raises UserError: sizes that cannot be, or that are not those of the weights.
    """
    found = hf_config.Facts(tree, source)
    if found.text("hidden_act") != "gelu":  # which is that of the masks' layers, too
        raise found.wrong("hidden_act", "must be gelu, as that of EoMT's masks")
    queries = found.integer("num_queries")
    classes = shapes.get("class_predictor.weight", (0,))[0] - 1
    if classes < 1:
        raise UserError(f"{source}: no class_predictor is beside it, and so no classes")
    return EomtHead(
        num_classes=classes,
        queries=queries,
        blocks=found.integer("num_blocks"),
        upscale=found.integer("num_upscale_blocks"),
    )


def is_difference(values: Mapping[str, np.ndarray]) -> bool:
    """Return whether an encoder's parameters, by our names, are differences to another's.

    The authors' files for DINOv3 are. Their norms' scales are near zero, a network's are not.
    """
    scales = [x for name, x in values.items() if re.search(r"blocks/norm[12]/scale$", name)]
    return bool(scales) and float(np.mean([np.abs(x).mean() for x in scales])) < _DIFFERENCE


def config(cfg: ModelConfig, head: EomtHead, class_names: tuple[str, ...]) -> dict[str, Any]:
    """Return config.json of an EoMT.

    Raises UserError: transformers has none of such an encoder.
    """
    kind = _kind(cfg)
    assert isinstance(cfg, ViTConfig), "_kind"
    sides = [models.pair(getattr(cfg, name), name) for name in ("image_size", "patch")]
    if any(a != b for a, b in sides):
        raise UserError("transformers' EoMT is written for square images and patches")
    names = class_names or tuple(f"class {i}" for i in range(head.num_classes))
    gated = cfg.mlp is MlpKind.SWIGLU
    tree: dict[str, Any] = {
        "model_type": kind,
        "hidden_size": cfg.dim,
        "num_hidden_layers": cfg.depth,
        "num_attention_heads": cfg.num_heads,
        "hidden_act": "gelu",
        "layer_norm_eps": cfg.norm_eps,
        "image_size": sides[0][0],
        "patch_size": sides[1][0],
        "num_channels": cfg.channels,
        "layerscale_value": cfg.layer_scale,
        "num_register_tokens": cfg.num_registers,
        "num_queries": head.queries,
        "num_blocks": head.blocks,
        "num_upscale_blocks": eomt.doublings(cfg, head),
        "no_object_weight": _NO_OBJECT,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
    if kind == KINDS[0]:
        tree |= {"architectures": ["EomtForUniversalSegmentation"], "use_swiglu_ffn": gated}
        return tree | {"mlp_ratio": _ratio(cfg, gated=gated)}
    tree |= {"architectures": ["EomtDinov3ForUniversalSegmentation"], "use_gated_mlp": False}
    tree |= {"intermediate_size": cfg.mlp_dim, "query_bias": cfg.qkv_bias}
    tree |= {"key_bias": cfg.qkv_bias and cfg.key_bias, "value_bias": cfg.qkv_bias}
    theta = {"rope_theta": cfg.rope_theta, "rope_type": "default"}
    return tree | {"proj_bias": True, "mlp_bias": True, "rope_parameters": theta}


def _ratio(cfg: ViTConfig, *, gated: bool) -> int:
    for ratio in range(1, 17):
        width = hf_config.gated_width(ratio * cfg.dim) if gated else ratio * cfg.dim
        if width == cfg.mlp_dim:
            return ratio
    raise UserError(
        f"transformers' eomt has MLPs of a whole multiple of model.dim={cfg.dim}, not "
        f"{cfg.mlp_dim}",
        field="model.mlp_dim",
    )


def _kind(cfg: Any) -> str:
    """Return transformers' type of an EoMT with an encoder.

    Raises UserError: it has none.
    """
    if not isinstance(cfg, ViTConfig):
        raise UserError("transformers' EoMTs have ViTs for encoders")
    dinov3 = cfg.rope is not Rope.NONE
    fixed: dict[str, Any] = {"class_token": True, "pre_norm": False, "patch_norm": False}
    fixed |= {"patch_bias": True, "mlp_norm": False, "qk_norm": False, "proj_bias": True}
    fixed |= {"mlp_bias": True, "base_patch": (), "norm": "layer", "pos_embed_prefix": False}
    if cfg.mlp is not MlpKind.SWIGLU:
        fixed["gelu"] = Gelu.ERF  # the masks' layers have it, and one name is of both
    if dinov3:
        # There a gated MLP's activation would be that of the masks' layers, too.
        fixed |= {"rope": Rope.DINOV3, "pos_embed": PosEmbed.NONE, "mlp": MlpKind.GELU}
        del fixed["pos_embed_prefix"]
    else:
        fixed |= {"pos_embed": PosEmbed.LEARNED, "qkv_bias": True, "key_bias": True}
    for name, value in fixed.items():
        if getattr(cfg, name) != value:
            raise UserError(
                f"transformers' EoMT has an encoder of model.{name}={value}, not "
                f"{getattr(cfg, name)}",
                field=f"model.{name}",
            )
    if not cfg.layer_scale:
        raise UserError("transformers' EoMT has an encoder with model.layer_scale; this has none")
    return KINDS[dinov3]


def state(variables: Mapping[str, Any], cfg: ModelConfig, head: EomtHead) -> dict[str, np.ndarray]:
    """Return an EoMT's variables under transformers' names, in its shapes, and its buffers.

    Raises UserError: transformers has none of such an encoder.
    """
    params = variables["params"]
    encoder = {name: value for name, value in params.items() if name not in eomt.BESIDE}
    layout = hf.LAYOUTS[_kind(cfg)]
    found = hf.state({**variables, "params": encoder}, cfg, layout, "")
    leaves = dict(trees.named_leaves({"params": params}))
    for entry in beside(params):
        assert entry.encode is not None, "this layout goes both ways"
        (part,) = entry.layers[0]
        (value,) = entry.encode(np.asarray(leaves[entry.name]))
        found[part.key] = np.ascontiguousarray(value)
    weights = np.ones(head.num_classes + 1, np.float32)
    weights[-1] = _NO_OBJECT
    annealed = np.zeros(head.blocks, np.float32)
    return {**found, "attn_mask_probs": annealed, "criterion.empty_weight": weights}
