# SPDX-License-Identifier: Apache-2.0
"""A run of two towers, made by hand, whose texts and images meet by colour: red, green or blue."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from tests.unit.demo import colors
from tests.unit.weights import runs
from vit_jax import models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.evals import ZeroShotEval
from vit_jax.models import two_towers
from vit_jax.models.layers.mlp import Gelu
from vit_jax.models.text import TextConfig, TextPool
from vit_jax.models.two_towers import BIAS, IMAGE_HEAD, SCALE, TEXT, TwoTowers
from vit_jax.objectives import ContrastiveConfig
from vit_jax.objectives.contrastive import ContrastiveLoss
from vit_jax.text import tokenizers

MODEL = models.with_fields(colors.MODEL, {"num_classes": 0})
CONTEXT, DIM = 8, 8


def objective(*, sigmoid: bool) -> ContrastiveConfig:
    return ContrastiveConfig(
        loss=ContrastiveLoss.SIGMOID if sigmoid else ContrastiveLoss.SOFTMAX,
        text=TextConfig(
            context=CONTEXT,
            dim=DIM,
            depth=1,
            num_heads=1,
            mlp_dim=8,
            causal=False,
            pool=TextPool.LAST,
            gelu=Gelu.ERF,
        ),
        dim=3,
    )


def towers(*, sigmoid: bool = False) -> TwoTowers:
    found = objective(sigmoid=sigmoid)
    return TwoTowers(image=MODEL, text=found.text, dim=found.dim, has_bias=sigmoid)


def save_run(place: Path, *, sigmoid: bool = False, dataset: str = "") -> Path:
    """Save a run of both towers with its tokenizer; `dataset` is that of its zero-shot test."""
    return save(place, MODEL, objective(sigmoid=sigmoid), params(sigmoid=sigmoid), dataset)


def save(
    place: Path, model: Any, objective: ContrastiveConfig, params: Any, dataset: str = ""
) -> Path:
    """Save a run of any pair."""
    cfg = Config(model=model, objective=objective)
    cfg.data.mean, cfg.data.std = (0.0,), (1.0,)
    cfg.data.name = dataset or cfg.data.name
    crop = TransformConfig(crop=Crop.RESIZE)
    cfg.evals = {"zero": ZeroShotEval(transform=crop, templates="plain", split="test")}
    checkpoints = Checkpointer(place / "checkpoints", CheckpointConfig())
    state = dataclasses.replace(runs.make_state(model, 1234), params=params)
    own = list(two_towers.BESIDE)
    metadata = {"config": config_json.to_json(cfg), "class_names": [], "own_parameters": own}
    checkpoints.save(1234, state, metadata=metadata, metrics={})
    checkpoints.wait()
    context = objective.text.context
    tokenizers.save(tokenizers.clip(context=context), place / "tokenizer.json")
    return place


def params(*, sigmoid: bool = False) -> dict[str, Any]:
    """Make both towers: images as in `colors`; a text is the mean of its words' colours."""
    image = {name: x for name, x in colors._params().items() if name != "head"}
    shapes = two_towers.abstract(towers(sigmoid=sigmoid))["params"]
    beside = {name: shapes[name] for name in two_towers.BESIDE if name in shapes}
    flat = {"/".join(p): np.zeros(x.shape, np.float32) for p, x in colors._leaves(beside)}
    words = tokenizers.clip(context=CONTEXT)
    for channel, word in enumerate(colors.NAMES):
        flat[f"{TEXT}/token_embed"][words.tokens(word)[1], channel] = 4
    same = np.arange(DIM)
    for name in ("blocks/norm1", "blocks/norm2", "norm"):
        flat[f"{TEXT}/{name}/scale"] += 1
    flat[f"{TEXT}/blocks/attn/qkv/kernel"][0, same, 2 * DIM + same] = 1  # of the values
    flat[f"{TEXT}/blocks/attn/proj/kernel"][0, same, same] = 1
    color = np.arange(3)
    flat[f"{TEXT}/head/kernel"][color, color] = 1
    flat[f"{IMAGE_HEAD}/kernel"][color, color] = 1
    flat[SCALE] += np.log(10).astype(np.float32)
    if sigmoid:
        flat[BIAS] -= 8
    tree: dict[str, Any] = dict(image)
    for name, value in flat.items():
        *path, last = name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = jnp.asarray(value)
    return tree
