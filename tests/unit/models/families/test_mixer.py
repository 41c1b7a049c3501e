# SPDX-License-Identifier: Apache-2.0
"""MLP-Mixer: published sizes, timm's golden, options, initial values, bad configs."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.refusals import RANGE, Told, refused_as
from tests.unit.models.sizes import params_and_flops
from vit_jax import models, weights
from vit_jax.models import MixerConfig
from vit_jax.models.families import mixer
from vit_jax.models.layers.mlp import Gelu

GOLDEN = Path(__file__).parents[3] / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
NAMES = {f"mixer_{s}{p}": f"mixer_{s}{p}_224" for s in ("s", "b", "l") for p in (16, 32)}


def test_every_row_and_variant_is_compared() -> None:
    assert set(NAMES) == set(mixer.FAMILY.variants)
    assert set(NAMES.values()) == {name for name in TABLE if name.startswith("mixer_")}


@pytest.mark.parametrize("name", NAMES)
def test_parameter_count_and_flops(name: str) -> None:
    cfg, row = models.variant(name, scan_unroll=1), TABLE[NAMES[name]]
    assert cfg.image_size == (row["img_size"],) * 2
    params, flops = params_and_flops(cfg)
    assert params == row["params"]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=1e-3)


def golden_config(**fields: object) -> MixerConfig:
    kwargs = json.loads(str(np.load(GOLDEN / "mixer.npz")["spec"]))["kwargs"]
    dim = kwargs["embed_dim"]
    return MixerConfig(
        image_size=(kwargs["img_size"],),
        patch=(kwargs["patch_size"],),
        num_classes=kwargs["num_classes"],
        dim=dim,
        depth=kwargs["num_blocks"],
        token_mlp_dim=int(0.5 * dim),
        channel_mlp_dim=4 * dim,
        gelu=Gelu.ERF,
        **fields,
    )


def test_imported_values_that_no_output_shows() -> None:
    # What a token gets in all its channels alike, the next norm takes away.
    state = load_file(GOLDEN / "mixer.safetensors")
    ours = weights.from_timm(state, golden_config())["params"]["blocks"]["mlp_tokens"]["fc2"]
    for i, bias in enumerate(ours["bias"]):
        np.testing.assert_array_equal(bias, state[f"blocks.{i}.mlp_tokens.fc2.bias"])


def small(**fields: object) -> MixerConfig:
    base = {"image_size": (8, 12), "patch": (4, 4), "num_classes": 5, "dim": 16, "depth": 2}
    return MixerConfig(
        **{**base, "token_mlp_dim": 7, "channel_mlp_dim": 32, "zero_head": False, **fields}
    )


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"image_size": (9, 12)}, ("models.base.grid", "model.patch")),
        ({"token_mlp_dim": 0}, (RANGE, "model.token_mlp_dim")),
        ({"channel_mlp_dim": -1}, (RANGE, "model.channel_mlp_dim")),
        ({"depth": 0}, (RANGE, "model.depth")),
        ({"drop_path_rate": 1.0}, (RANGE, "model.drop_path_rate")),
    ],
)
def test_impossible_configs_are_named(fields: dict, message: Told) -> None:
    with refused_as(message):
        models.create(small(**fields))
