# SPDX-License-Identifier: Apache-2.0
"""RegNetY: widths, counts, costs, timm's outputs, initial values and options."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.models.tiny import TINY
from vit_jax import hardware, models, trees, weights
from vit_jax.analysis.flops import count
from vit_jax.errors import UserError
from vit_jax.models.regnet import RegNetConfig, stages

GOLDEN = Path(__file__).parent.parent / "golden"
TABLE = json.loads((GOLDEN / "param_counts.json").read_text())
# name: timm's name, depth and width of each stage
PUBLISHED = {
    "200mf": ("002", (1, 1, 4, 7), (24, 56, 152, 368)),
    "400mf": ("004", (1, 3, 6, 6), (48, 104, 208, 440)),
    "600mf": ("006", (1, 3, 7, 4), (48, 112, 256, 608)),
    "800mf": ("008", (1, 3, 8, 2), (64, 128, 320, 768)),
    "1600mf": ("016", (2, 6, 17, 2), (48, 120, 336, 888)),
    "3200mf": ("032", (2, 5, 13, 1), (72, 216, 576, 1512)),
    "4gf": ("040", (2, 6, 12, 2), (128, 192, 512, 1088)),
    "6400mf": ("064", (2, 7, 14, 2), (144, 288, 576, 1296)),
    "8gf": ("080", (2, 4, 10, 1), (168, 448, 896, 2016)),
    "12gf": ("120", (2, 5, 11, 1), (224, 448, 896, 2240)),
    "16gf": ("160", (2, 4, 11, 1), (224, 448, 1232, 3024)),
    "32gf": ("320", (2, 5, 12, 1), (232, 696, 1392, 3712)),
    "800mf_tv": ("008_tv", (1, 3, 8, 2), (64, 144, 320, 784)),
    "8gf_tv": ("080_tv", (2, 4, 10, 1), (224, 448, 896, 2016)),
}


def test_every_published_network_is_a_variant() -> None:
    ours = {name for name, cfg in models.VARIANTS.items() if isinstance(cfg, RegNetConfig)}
    assert ours == {f"regnety_{name}" for name in PUBLISHED}
    rows = {name for name in TABLE if name.startswith("regnety_")}
    assert rows == {f"regnety_{name}" for name, _, _ in PUBLISHED.values()}


@pytest.mark.parametrize("name", PUBLISHED)
def test_stages(name: str) -> None:
    cfg = models.variant(f"regnety_{name}")
    made, (_, depths, widths) = stages(cfg), PUBLISHED[name]
    assert tuple(stage.depth for stage in made) == depths
    assert tuple(stage.width for stage in made) == widths
    assert all(stage.width == stage.groups * cfg.group_width for stage in made)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_and_flops(name: str) -> None:
    row = TABLE[f"regnety_{PUBLISHED[name][0]}"]
    module, sizes = models.create(models.variant(f"regnety_{name}")), []

    def run(image: jax.Array) -> jax.Array:  # both of one trace
        out, variables = module.init_with_output(jax.random.key(0), image)
        sizes.append(trees.num_params(variables["params"]))
        return out.logits

    image = jax.ShapeDtypeStruct((1, row["img_size"], row["img_size"], 3), jnp.float32)
    # On a CPU a grouped convolution is one for each group, up to 63: traced as on a GPU instead.
    with hardware.tracing_for(hardware.Target("gpu")):
        flops = count(run, image)
    assert sizes == [row["params"]]
    assert flops == pytest.approx(2e9 * row["gmacs"], rel=0.001)


def test_equals_timm() -> None:
    golden = np.load(GOLDEN / "regnety.npz")
    spec = json.loads(str(golden["spec"]))
    fields = spec["kwargs"]["cfg"]
    cfg = RegNetConfig(
        **{"group_width": fields.pop("group_size"), **fields},
        num_classes=spec["kwargs"]["num_classes"],
        image_size=tuple(spec["input_hw"]),
    )
    variables = weights.from_timm(load_file(GOLDEN / "regnety.safetensors"), cfg)
    forward = models.create(cfg).apply
    with jax.default_matmul_precision("highest"):
        out = jax.jit(forward)(variables, jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=5e-5, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=5e-5, rtol=0)
    assert out.tokens is None


def small(**fields: Any) -> RegNetConfig:
    return dataclasses.replace(TINY["regnet"], **{"zero_init_last": False, **fields})


def forward(
    cfg: RegNetConfig, *, train: bool = False, dropout_seed: int = 2
) -> tuple[dict[str, Any], models.Output, dict[str, Any]]:
    """Return fresh variables, the output of them and the new batch statistics."""
    image = np.random.default_rng(1).normal(size=(3, *models.input_shape(cfg))).astype(np.float32)
    return _run(image, jax.random.key(dropout_seed), cfg, train)


@functools.partial(jax.jit, static_argnums=(2, 3))  # one compilation a config
def _run(image: jax.Array, rng: jax.Array, cfg: RegNetConfig, train: bool) -> Any:
    module = models.create(cfg)
    params, state = models.init(module, cfg, jax.random.key(0))
    variables = {"params": params, **state}
    rngs = {"dropout": rng}
    out, state = module.apply(variables, image, train=train, rngs=rngs, mutable=list(state))
    return variables, out, dict(state)


@pytest.mark.parametrize(
    "fields",
    [
        {"image_size": (33, 18), "stem_width": 5, "channels": 1},
        {"se_ratio": 0.0, "group_width": 16},
        {"w0": 16, "wa": 0.0, "depth": 3},
    ],
    ids=lambda f: "-".join(f),
)
def test_options_give_the_promised_shapes(fields: dict) -> None:
    cfg = small(**fields)
    variables, out, _ = forward(cfg)
    assert out.logits.shape == (3, 3)
    assert out.logits.dtype == out.features.dtype == jnp.float32
    assert out.features.shape == (3, 16)
    assert np.isfinite(out.logits).all()
    names = [name for name, _ in trees.named_leaves(variables["params"])]
    assert any("/se/" in name for name in names) == (cfg.se_ratio > 0)


def test_only_training_moves_the_statistics() -> None:
    before, _, after = forward(small())
    jax.tree.map(np.testing.assert_array_equal, before["batch_stats"], after["batch_stats"])
    before, _, after = forward(small(), train=True)
    old, new = (dict(trees.named_leaves(v["batch_stats"])) for v in (before, after))
    assert old.keys() == new.keys()
    assert "stage1/block0/downsample/bn/var" in old
    assert all((old[name] != new[name]).any() for name in old)


@pytest.mark.parametrize("field", ["dropout_rate", "drop_path_rate"])
def test_randomness_is_of_training_only(field: str) -> None:
    one, plain = small(**{field: 0.5}), small()
    np.testing.assert_array_equal(forward(one)[1].logits, forward(plain)[1].logits)
    first, second = (forward(one, train=True, dropout_seed=seed)[1] for seed in (2, 3))
    assert not np.allclose(first.logits, forward(plain, train=True)[1].logits)
    assert not np.allclose(first.logits, second.logits)


def test_drop_path_runs_from_nothing_to_the_rate() -> None:
    # The first block is never dropped: a network of it alone draws nothing.
    cfg = small(drop_path_rate=0.5, depth=1)
    first, second = (forward(cfg, train=True, dropout_seed=seed)[1] for seed in (2, 3))
    np.testing.assert_array_equal(first.logits, second.logits)


def test_initial_values() -> None:
    cfg = small(w0=64, wa=64.0, stem_width=48, group_width=16, num_classes=40)
    variables, _, _ = forward(cfg)
    params = dict(trees.named_leaves(variables["params"]))
    expected = {
        "stem/conv/kernel": (2 / (9 * 48)) ** 0.5,
        "stage1/block0/conv1/conv/kernel": (2 / 128) ** 0.5,
        "stage1/block0/conv2/conv/kernel": (2 / (9 * 16)) ** 0.5,
        "stage1/block0/downsample/conv/kernel": (2 / 128) ** 0.5,
        "stage1/block0/se/fc1/kernel": (2 / 16) ** 0.5,
        "stage1/block0/se/fc2/kernel": (2 / 128) ** 0.5,
        "head/kernel": 0.01,
    }
    for name, std in expected.items():
        assert np.std(params[name]) == pytest.approx(std, rel=0.05), name
    for name, value in params.items():
        if name.endswith(("scale", "bias")):
            np.testing.assert_array_equal(value, int(name.endswith("scale")), err_msg=name)


def test_a_block_can_start_as_its_shortcut() -> None:
    variables, _, _ = forward(small(zero_init_last=True))
    scales = {
        name: value
        for name, value in trees.named_leaves(variables["params"])
        if name.endswith("scale")
    }
    zero = {name for name, value in scales.items() if not value.any()}
    assert zero == {name for name in scales if "/conv3/" in name}
    assert len(zero) == 2


def test_a_head_can_start_at_zero_and_at_its_bias() -> None:
    _, out, _ = forward(small(zero_head=True, head_bias=-3.0))
    np.testing.assert_array_equal(out.logits, -3.0)


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"w0": 12}, r"model.w0=12 must be a multiple of 8"),
        ({"w0": 0}, r"model.w0=0"),
        ({"wa": -1.0}, r"model.wa=-1.0"),
        ({"wm": 1.0}, r"model.wm=1.0 must be above 1"),
        ({"depth": 0}, r"model.depth=0"),
        ({"group_width": 0}, r"model.group_width=0"),
        ({"stem_width": 0}, r"model.stem_width=0"),
        ({"se_ratio": 1.5}, r"model.se_ratio=1.5"),
        ({"se_ratio": 0.05}, r"model.se_ratio=0.05 leaves nothing of the narrowest"),
        ({"group_min_ratio": -0.1}, r"model.group_min_ratio=-0.1"),
        ({"drop_path_rate": 1.0}, r"model.drop_path_rate=1.0"),
        ({"dropout_rate": -0.5}, r"model.dropout_rate=-0.5"),
        ({"image_size": (1, 2, 3)}, r"image_size"),
    ],
    ids=lambda x: "-".join(f"{k}={v}" for k, v in x.items()) if isinstance(x, dict) else "",
)
def test_impossible_configs_are_named(fields: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        models.create(small(**fields))


def test_another_image_size_is_refused() -> None:
    cfg = small()
    variables, _, _ = forward(cfg)
    with pytest.raises(UserError, match=r"\[B, 16, 16, 3\]"):
        models.create(cfg).apply(variables, jnp.zeros((1, 16, 17, 3)))
