# SPDX-License-Identifier: Apache-2.0
"""transformers' depth models, `dpt` and `depth_anything`: their head's config and names.

The encoder lies below `backbone.` under the names of its own kind (`names.hf`), the plain ViT of
DPT's authors below `dpt.`, the head below `neck.` and `head.`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError, shown
from vit_jax.models import ModelConfig
from vit_jax.models.dense import dpt
from vit_jax.models.dense.dpt import LEVELS, DepthOutput, DptConfig, Readout
from vit_jax.models.dense.dpt import NAME as HEAD
from vit_jax.weights import layout as layout_lib
from vit_jax.weights.layout import Entry, FileTensor, Layout, Shape, renamed, torch_layout
from vit_jax.weights.names import hf
from vit_jax.weights.names.hf_config import DENSE

_ANYTHING = "depth_anything"
# The defaults of transformers 5.23's classes.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "dpt": {
        "readout_type": "project",
        "neck_hidden_sizes": [96, 192, 384, 768],
        "reassemble_factors": [4, 2, 1, 0.5],
        "backbone_out_indices": [2, 5, 8, 11],
        "neck_ignore_stages": [],
        "fusion_hidden_size": 256,
        "head_in_index": -1,
        "use_batch_norm_in_fusion_residual": False,
        "use_bias_in_fusion_residual": None,
        "add_projection": False,
        "hidden_act": "gelu",
    },
    _ANYTHING: {
        "neck_hidden_sizes": [48, 96, 192, 384],
        "reassemble_factors": [4, 2, 1, 0.5],
        "fusion_hidden_size": 64,
        "head_in_index": -1,
        "head_hidden_size": 32,
        "depth_estimation_type": "relative",
        "max_depth": 1,
    },
}
_MOST = 2**16  # channels, and layers: a hostile config must not decide how much memory is used
_NAMES = (
    (r"^project(\d)/", r"neck/reassemble_stage/layers/\1/projection/"),
    (r"^resize(\d)/", r"neck/reassemble_stage/layers/\1/resize/"),
    (r"^readout(\d)/", r"neck/reassemble_stage/readout_projects/\1/0/"),
    (r"^smooth(\d)/", r"neck/convs/\1/"),
    (r"^fuse(\d)/project/", r"neck/fusion_stage/layers/\1/projection/"),
    (
        r"^fuse(\d)/res(\d)/conv(\d)/",
        r"neck/fusion_stage/layers/\1/residual_layer\2/convolution\3/",
    ),
    (r"^fuse(\d)/res(\d)/norm(\d)/", r"neck/fusion_stage/layers/\1/residual_layer\2/batch_norm\3/"),
    (r"^projection/", "head/projection/"),
)
_HEADS = {  # of `to_next`
    False: (
        (r"^conv1/", "head/head/0/"),
        (r"^conv2/", "head/head/2/"),
        (r"^conv3/", "head/head/4/"),
    ),
    True: ((r"^conv(\d)/", r"head/conv\1/"),),
}
_KINDS = (
    (r"/(kernel|scale)$", "/weight"),
    (r"/mean$", "/running_mean"),
    (r"/var$", "/running_var"),
)


def is_depth(tree: Mapping[str, Any]) -> bool:
    """Return whether a config.json of transformers' is of a depth model."""
    return tree.get("model_type") in DENSE


def config(tree: Mapping[str, Any], model: ModelConfig, source: str) -> DptConfig:
    """Return the head of a config.json; `source` is the file's name in messages.

    Raises UserError: a value that no head here has.
    """
    kind = str(tree["model_type"])
    values = {**_DEFAULTS[kind], **{k: v for k, v in tree.items() if v is not None}}
    backbone = tree.get("backbone_config")

    def wrong(key: str, must: str) -> UserError:
        return UserError(f"{source}: {key}={shown(repr(values.get(key))[:80])} {must}")

    def whole(key: str) -> int:
        if type(found := values[key]) is not int or not 1 <= found <= _MOST:
            raise wrong(key, f"must be a whole number from 1 to {_MOST:,}")
        return found

    def flag(key: str) -> bool:
        if not isinstance(found := values[key], bool):
            raise wrong(key, "must be true or false")
        return found

    def numbers(key: str) -> tuple[Any, ...]:
        found = values[key]
        fit = isinstance(found, list) and len(found) == LEVELS
        if not fit or not all(type(n) in (int, float) and 0 < n <= _MOST for n in found):
            raise wrong(key, f"must hold {LEVELS} numbers, one for each layer")
        return tuple(found)

    widths = numbers("neck_hidden_sizes")
    if not all(type(n) is int for n in widths):
        raise wrong("neck_hidden_sizes", "must be whole numbers")
    if values["head_in_index"] not in (-1, LEVELS - 1):
        raise wrong("head_in_index", "is not known here: the head reads the last map")
    fields: dict[str, Any] = {
        "taps": _taps(backbone, values, getattr(model, "depth", 0), source),
        "norm": bool(backbone.get("apply_layernorm", True)) if backbone else False,
        "widths": widths,
        "factors": tuple(map(float, numbers("reassemble_factors"))),
        "dim": whole("fusion_hidden_size"),
    }
    if kind == _ANYTHING:
        estimation, scale = values["depth_estimation_type"], values["max_depth"]
        outputs = {"relative": DepthOutput.RELU, "metric": DepthOutput.SIGMOID}
        if estimation not in outputs:
            raise wrong("depth_estimation_type", f"must be one of {', '.join(outputs)}")
        if type(scale) not in (int, float) or not 0 < scale <= 1e6:
            raise wrong("max_depth", "must be a number above 0, at most 1e6")
        fields |= {"readout": Readout.IGNORE, "hidden_dim": whole("head_hidden_size")}
        fields |= {"to_next": True, "output": outputs[estimation], "scale": float(scale)}
        return DptConfig(**fields)
    if values["neck_ignore_stages"]:
        raise wrong("neck_ignore_stages", "is not known here: each layer has its map")
    if values["readout_type"] not in tuple(Readout):
        raise wrong("readout_type", f"must be one of {', '.join(Readout)}")
    if values["hidden_act"] != "gelu":
        raise wrong("hidden_act", "must be gelu")
    norm = flag("use_batch_norm_in_fusion_residual")
    has_bias = values["use_bias_in_fusion_residual"]
    has_bias = not norm if has_bias is None else flag("use_bias_in_fusion_residual")
    fields |= {"readout": Readout(values["readout_type"]), "project": flag("add_projection")}
    return DptConfig(**fields, residual_norm=norm, residual_bias=has_bias)


def _taps(
    backbone: Mapping[str, Any] | None, own: Mapping[str, Any], depth: int, source: str
) -> tuple[int, ...]:
    """Return the layers that a backbone's config names, counted from 0; its "stage1" is layer 0.

    Without a backbone they are the model's own, which are counted from 0 there too.
    """
    if backbone is None:
        given = own["backbone_out_indices"]
        ones = [n + 1 if type(n) is int else n for n in given] if isinstance(given, list) else given
        backbone = {"out_indices": ones}
    numbers = backbone.get("out_indices")
    if numbers is None and isinstance(names := backbone.get("out_features"), list):
        matches = (re.fullmatch(r"stage(\d{1,4})", str(name)) for name in names)
        numbers = [int(match[1]) if match else 0 for match in matches]
    found: list[Any] = numbers if isinstance(numbers, list) else []
    if len(found) != LEVELS or not all(type(n) is int and 1 <= n <= depth for n in found):
        given = shown(repr(numbers)[:80])
        must = f"must name {LEVELS} layers of 1 to {depth}; the stem is none"
        raise UserError(f"{source}: backbone_config.out_indices={given} {must}")
    return tuple(n - 1 for n in found)


def entries(cfg: DptConfig, model: ModelConfig) -> list[Entry]:
    """List every parameter and statistic of a head with its place in a file."""

    def place(name: str, shape: Shape, _: int) -> tuple[tuple[FileTensor, ...], Any, Any]:
        inside = name.removeprefix(f"{HEAD}/")
        key = renamed(inside, (*_NAMES, *_HEADS[cfg.to_next], *_KINDS)).replace("/", ".")
        there = _layout(inside, shape, cfg)
        parts = (FileTensor(key, there.shape),)
        return parts, lambda parts: there.decode(parts[0]), lambda x: [there.encode(x)]

    return layout_lib.entries(abstract(cfg, model), place)


def abstract(cfg: DptConfig, model: ModelConfig) -> dict[str, Any]:
    """Return the shapes of a head's variables, under the names that they have in a run."""
    import jax  # late: names are read without it

    params, state = jax.eval_shape(lambda: dpt.init(cfg, model, jax.random.key(0)))
    return {kind: {HEAD: tree} for kind, tree in {"params": params, **state}.items()}


def _layout(name: str, shape: Shape, cfg: DptConfig) -> Layout:
    level = re.match(r"resize(\d)/kernel$", name)
    if level and cfg.factors[int(level[1])] > 1:  # a transposed convolution's: (in, out, k, k)
        there = (shape[2], shape[3], shape[0], shape[1])
        return Layout(there, lambda w: w.transpose(2, 3, 0, 1), lambda w: w.transpose(2, 3, 0, 1))
    return torch_layout(name, shape, 1)


def is_ignored(key: str, *, has_head: bool) -> bool:
    """Return whether a tensor is none of ours: a count of batches, or all of an unused head."""
    return key.endswith(".num_batches_tracked") or (
        not has_head and key.startswith(("neck.", "head."))
    )


def state(
    variables: Mapping[str, Any], model: ModelConfig, cfg: DptConfig, layout: hf.SavedNames
) -> dict[str, np.ndarray]:
    """Return an encoder's and a head's variables under transformers' names, in its shapes.

    `variables` has the head under `HEAD`, `layout` is the encoder's.
    """
    plain = {
        kind: {name: value for name, value in tree.items() if name != HEAD}
        for kind, tree in variables.items()
    }
    before = "dpt." if layout is hf.LAYOUTS["vit"] else "backbone."
    found = hf.state({k: v for k, v in plain.items() if v}, model, layout, before)
    leaves = dict(trees.named_leaves(variables))
    for entry in entries(cfg, model):
        assert entry.encode is not None, "these names go both ways"
        (parts,) = entry.layers
        for part, there in zip(parts, entry.encode(np.asarray(leaves[entry.name])), strict=True):
            found[part.key] = np.ascontiguousarray(there)
            if part.key.endswith(".running_mean"):
                count = f"{part.key.rpartition('.')[0]}.num_batches_tracked"
                found[count] = np.zeros((), np.int64)
    return found


def written(cfg: DptConfig, model: ModelConfig, backbone: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json of a head over an encoder; `backbone` is that of the encoder alone.

    Raises UserError: a head that neither of transformers' models has.
    """
    depth = getattr(model, "depth", 0)
    stages = [f"stage{i + 1}" for i in range(depth)]
    taps = [tap + 1 for tap in cfg.taps]
    own = {
        "out_features": [f"stage{tap}" for tap in taps],
        "out_indices": taps,
        "stage_names": ["stem", *stages],
        "apply_layernorm": cfg.norm,
        "reshape_hidden_states": False,
    }
    factors = [int(factor) if factor >= 1 else factor for factor in cfg.factors]
    found: dict[str, Any] = {
        "backbone_config": {**backbone, **own},
        "neck_hidden_sizes": list(cfg.widths),
        "reassemble_factors": factors,
        "fusion_hidden_size": cfg.dim,
        "head_in_index": -1,
    }
    if cfg.to_next:
        plain = (cfg.readout is Readout.IGNORE, cfg.residual_bias, not cfg.residual_norm)
        if not all(plain) or cfg.project:
            what = "readout, residual_bias, residual_norm or project"
            raise UserError(f"transformers' depth_anything has no such {what} of a DPT head")
        patch = models.pair(getattr(model, "patch", ()), "patch")
        is_metric = cfg.output is DepthOutput.SIGMOID
        scale = int(cfg.scale) if cfg.scale == math.floor(cfg.scale) else cfg.scale
        return {
            "architectures": ["DepthAnythingForDepthEstimation"],
            "model_type": _ANYTHING,
            **found,
            "patch_size": patch[0],
            "reassemble_hidden_size": getattr(model, "dim", 0),
            "head_hidden_size": cfg.hidden_dim,
            "depth_estimation_type": "metric" if is_metric else "relative",
            "max_depth": scale,
        }
    default = DptConfig()
    if (cfg.output, cfg.scale, cfg.hidden_dim) != (
        default.output,
        default.scale,
        default.hidden_dim,
    ):
        raise UserError("transformers' dpt has output=relu, scale=1 and hidden_dim=32 alone")
    own = {"architectures": ["DPTForDepthEstimation"], "model_type": "dpt"}
    if backbone["model_type"] == "vit":
        if cfg.norm:
            raise UserError(
                "transformers' dpt on a plain ViT reads its layers before the last norm"
            )
        del found["backbone_config"]
        own = {**backbone, **own, "backbone_out_indices": list(cfg.taps)}
    return {
        **own,
        **found,
        "is_hybrid": False,
        "readout_type": str(cfg.readout),
        "neck_ignore_stages": [],
        "add_projection": cfg.project,
        "use_batch_norm_in_fusion_residual": cfg.residual_norm,
        "use_bias_in_fusion_residual": cfg.residual_bias,
        "hidden_act": "gelu",
    }
