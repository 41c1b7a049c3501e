# SPDX-License-Identifier: Apache-2.0
"""ConvNeXt: costs, timm's and transformers' outputs, initial values and options."""

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.unit.models.families.test_convnext import GOLDEN, SMALL
from vit_jax import models, trees, weights
from vit_jax.cost.flops import count
from vit_jax.devices import hardware, sharding
from vit_jax.export import transformers
from vit_jax.models import ConvNeXtConfig
from vit_jax.models.families.convnext import GlobalResponseNorm
from vit_jax.models.intermediates import Layer, output_and_layers
from vit_jax.weights.apply import fill, in_memory
from vit_jax.weights.names import hf, hf_config

# GMACs at 224 pixels: arXiv:2201.03545 table 1, arXiv:2301.00808 table 10.
GMACS = {"convnext_t": 4.5, "convnextv2_h": 115}


def test_costs_are_the_papers() -> None:
    for name, gmacs in GMACS.items():
        cfg = models.variant(name, scan_unroll=1)
        image = jax.ShapeDtypeStruct((1, *models.input_shape(cfg)), jnp.float32)
        with hardware.tracing_for(hardware.Target("gpu")):
            module = models.create(cfg)
            run = lambda v, x, m=module: m.apply(v, x).logits  # noqa: E731
            flops = count(run, models.abstract(cfg), image)
        assert flops == pytest.approx(2e9 * gmacs, rel=0.015), name


def run(cfg: ConvNeXtConfig, variables: Any, image: Any) -> tuple[models.Output, list[Layer]]:
    with jax.default_matmul_precision("highest"):
        return jax.jit(lambda v, x: output_and_layers(cfg, v, x))(variables, jnp.asarray(image))


def close(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found, expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("name", ["convnext", "convnextv2"])
def test_equals_timm(name: str) -> None:
    golden, state = np.load(GOLDEN / f"{name}.npz"), load_file(GOLDEN / f"{name}.safetensors")
    depths = (1, 1, 2, 1) if name == "convnext" else (1, 2, 1, 1)
    fields = {"depths": depths, "widths": (8, 12, 16, 24), "num_classes": 6}
    cfg = models.variant(f"{name}_t", image_size=(64, 96), scan_unroll=1, **fields)
    variables = weights.from_timm(state, cfg)
    out, layers = run(cfg, variables, golden["image"].transpose(0, 2, 3, 1))
    close(out.logits, golden["logits"])
    close(out.features, golden["pre_logits"])
    for i, layer in enumerate(layers):
        close(layer.patches, golden[f"stage{i}"].transpose(0, 2, 3, 1))
    written = weights.to_timm(variables, cfg)
    assert written.keys() == state.keys()
    for key, value in state.items():
        np.testing.assert_array_equal(written[key], value)


def test_equals_transformers_dinov3() -> None:
    golden = np.load(GOLDEN / "dinov3_convnext.npz")
    state = load_file(GOLDEN / "dinov3_convnext.safetensors")
    tree = json.loads((GOLDEN / "dinov3_convnext.config.json").read_text()) | {"image_size": 64}
    cfg = hf_config.model(tree, {key: x.shape for key, x in state.items()}, "config.json")
    assert isinstance(cfg, ConvNeXtConfig)
    cfg.scan_unroll = 1
    layout = hf_config.Facts(tree, "config.json").layout
    # Its modules' names differ from those that it saves.
    modules = {re_named(key): value for key, value in state.items()}
    for given in (state, modules):
        source = hf.seen(in_memory(given), cfg, layout, "")
        read = fill(hf.entries(cfg, layout, ""), source)
    variables = trees.nest(read)
    image = golden["pixel_values"].transpose(0, 2, 3, 1)
    out, _ = run(cfg, variables, image)
    close(out.features, golden["pooler_output"])
    close(out.tokens, golden["last_hidden_state"][:, 1:])
    (last,) = output_and_layers(cfg, variables, jnp.asarray(image), [-1], norm=True)[1]
    close(last.tokens, golden["last_hidden_state"][:, 1:])
    written = transformers.to_hf(variables, cfg)
    assert written.keys() == state.keys()
    for key, value in state.items():
        np.testing.assert_array_equal(written[key], value)
    assert {**tree, **transformers.config(cfg, ())} == tree


def re_named(key: str) -> str:
    return f"model.{key}" if key.startswith("stages.") else key


def test_options_give_the_promised_shapes() -> None:
    # Each stem and norm, a layer before the head, the last norm first.
    for fields in (
        {"stem": "overlap_tiered", "norm": "rms", "dtype": "bfloat16", "remat": "dots"},
        {"stem": "overlap_act", "norm": "simple", "norm_first": True},
        {"pre_logits_dim": 12, "grn": False},
    ):
        cfg = models.with_fields(SMALL, fields)
        rng, module = np.random.default_rng(0), models.create(cfg)
        shapes = models.abstract(cfg)
        own = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)  # noqa: B023
        image = rng.normal(size=(2, 18, 18, 3)).astype(np.float32)
        out, seen = jax.jit(lambda v, x, m=module: models.captured(m, v, x))(own, image)
        assert out.features.shape == (2, cfg.pre_logits_dim or 16)
        assert out.logits.dtype == out.features.dtype == jnp.float32
        assert out.tokens.dtype == jnp.dtype(cfg.dtype.value)
        assert np.isfinite(out.logits).all()
        # What places add to the features is, on average, the features.
        mean = np.asarray(seen["map"], np.float32).mean(axis=(1, 2))
        np.testing.assert_allclose(mean, out.features, atol=1e-5)


def test_initial_values() -> None:
    cfg = dataclasses.replace(SMALL, widths=(64, 64), layer_scale=1e-6, head_bias=-6.9)
    params = jax.jit(lambda key: models.init(models.create(cfg), cfg, key)[0])(jax.random.key(0))
    blocks = params["stage1"]["blocks"]
    for name in ("conv_dw", "mlp/fc1", "mlp/fc2"):
        node: Any = blocks
        for part in name.split("/"):
            node = node[part]
        assert np.std(node["kernel"]) == pytest.approx(0.02, rel=0.1), name
        assert not np.any(node["bias"])
    assert not np.allclose(blocks["conv_dw"]["kernel"][0], blocks["conv_dw"]["kernel"][1])
    np.testing.assert_array_equal(blocks["ls"]["gamma"], np.full((2, 64), 1e-6, np.float32))
    assert not np.any(blocks["mlp"]["grn"]["scale"])
    np.testing.assert_array_equal(params["head"]["bias"], np.full(3, -6.9, np.float32))


def test_a_gpus_program_over_a_mesh_computes_the_same() -> None:
    # There each device convolves its own images, in the loop over a stage's blocks, too.
    rng, module = np.random.default_rng(0), models.create(SMALL)
    shapes = models.abstract(SMALL)
    variables = jax.tree.map(lambda x: rng.normal(0, 0.3, x.shape).astype(np.float32), shapes)
    image = rng.normal(size=(8, 18, 18, 3)).astype(np.float32)
    loss = lambda v, x: jnp.sin(module.apply(v, x).logits).sum()  # noqa: E731
    expected = jax.jit(jax.value_and_grad(loss))(variables, image)
    mesh = sharding.make_mesh(sharding.MeshConfig(data=2, fsdp=2, tensor=2))
    with hardware.tracing_for(hardware.Target("gpu")), jax.set_mesh(mesh):
        placed = jax.device_put(variables, sharding.shardings(shapes, mesh))
        batch = jax.device_put(image, sharding.batch_sharding(mesh))
        found = jax.jit(jax.value_and_grad(lambda v, x: loss(v, x)))(placed, batch)
    scaled = lambda a, b: np.testing.assert_allclose(  # noqa: E731
        a, b, atol=1e-5 * max(1.0, float(np.abs(b).max()))
    )
    jax.tree.map(scaled, found, expected)


def test_a_channel_of_zeros_has_a_gradient() -> None:
    norm, x = GlobalResponseNorm(), jnp.zeros((2, 3, 4)).at[..., 1:].set(1.0)
    params = {"params": {"scale": jnp.ones(4), "bias": jnp.zeros(4)}}
    slope = jax.grad(lambda x: norm.apply(params, x).sum())(x)
    assert np.isfinite(slope).all()
