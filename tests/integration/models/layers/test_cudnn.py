# SPDX-License-Identifier: Apache-2.0
"""cuDNN's attention without a GPU: every config's step traces, and padding changes nothing.

jax's checks of the kernel answer for a described H100, so that a refused shape fails here.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.models.layers.test_cudnn import H100, value_and_gradients
from tests.unit.test_configs import RUNS, load
from vit_jax import models
from vit_jax.cost import topology
from vit_jax.devices import hardware
from vit_jax.models import CaiTConfig, ConViTConfig, DType, HybridConfig, SwinConfig, ViTConfig
from vit_jax.models.layers import attention
from vit_jax.models.layers.attention import AttentionImpl, attend, check_target
from vit_jax.models.layers.pool import Pool

FORWARD, BACKWARD = "dot_product_attention_fwd", "dot_product_attention_bwd"  # jax's primitives

# What decides how a model attends, whichever family it is of.
KEPT = (
    *("image_size", "patch", "dim", "num_heads", "head_dim", "window", "attention"),
    *("pool", "pool_prefix", "class_token", "distilled", "num_registers", "token_merging"),
    "attention_dropout_rate",
)
# By family that attends: the fewest blocks that show each of its kinds.
SHALLOW: dict[type, dict[str, Any]] = {
    ViTConfig: {"depth": 1},
    HybridConfig: {"depth": 1, "backbone_depths": (), "backbone_widths": ()},
    ConViTConfig: {"depth": 2, "local_up_to_layer": 1},
    CaiTConfig: {"depth": 1, "token_depth": 1},
    SwinConfig: {},
}


def tokens(cfg: Any) -> int:
    rows, columns = models.patch_grid(cfg, models.pair(cfg.image_size, "image_size"))
    return rows * columns + models.num_prefix(cfg)


def shapes() -> list[Any]:
    """Return every config's model that attends, cut; those that attend alike are one.

    How many heads there are is of no matter to the kernel, but how wide one is; nor what its tokens
    are, but whether they are odd, as further lengths are below.
    """
    found = {}
    for path, arg in RUNS:
        cfg = load(path, arg).model
        if type(cfg) not in SHALLOW:
            continue
        fields = {f.name: getattr(cfg, f.name) for f in dataclasses.fields(cfg) if f.name in KEPT}
        fields |= {
            "dtype": DType.BFLOAT16,
            "num_classes": 2,
            "scan_unroll": 1,
            **SHALLOW[type(cfg)],
        }
        if isinstance(cfg, SwinConfig):  # the second block of a stage shifts its windows
            fields["depths"], fields["num_heads"] = (2,), (1,)
            fields["dim"] = cfg.dim // cfg.num_heads[0]
        else:
            fields["num_heads"] = 4
            if "dim" in fields:  # ConViT has a field of the width of a head
                fields["dim"] = 4 * cfg.dim // cfg.num_heads
        if isinstance(cfg, HybridConfig):  # a stem alone shrinks the image by 4, a stage by 2 more
            fields["patch"] = tuple(
                s * 2 ** max(len(cfg.backbone_depths) - 1, 0) for s in cfg.patch
            )
        cut = type(cfg)(**fields)
        alike = [getattr(cut, name, None) for name in ("dim", "head_dim", "window", "attention")]
        alike += [getattr(cut, "token_merging", 0), cut.attention_dropout_rate]
        by_query = getattr(cut, "pool", None) is Pool.MAP
        found.setdefault((type(cut), tokens(cut) % 2, by_query, *alike), cut)
    return [*found.values()]


def step(cfg: Any) -> str:
    """Return the program of a loss's gradient, as jax writes it down."""
    module, params = models.create(cfg), models.abstract(cfg)["params"]
    image = jax.ShapeDtypeStruct((2, *models.input_shape(cfg)), jnp.float32)

    def loss(params: Any, image: jax.Array, key: jax.Array) -> jax.Array:
        out: Any = module.apply({"params": params}, image, train=True, rngs={"dropout": key})
        return out.logits.sum()

    return str(jax.make_jaxpr(jax.grad(loss))(params, image, jax.random.key(0)))


def traced_for_h100(cfg: Any) -> str:
    with hardware.tracing_for(H100), topology.cudnn_answers(H100):
        return step(cfg)


def test_every_configs_gradient_is_one_that_cudnn_computes() -> None:
    odd, families = set(), set()
    for cfg in shapes():
        program = traced_for_h100(cfg)
        plain = isinstance(cfg, ViTConfig | ConViTConfig) and not cfg.attention_dropout_rate
        takes = plain and not getattr(cfg, "token_merging", 0)
        assert (FORWARD in program, BACKWARD in program) == (takes, takes), cfg
        if takes:
            odd.add(tokens(cfg) % 2)
        families.add(type(cfg))
    assert families == set(SHALLOW)
    assert odd == {0, 1}


@pytest.mark.parametrize("tokens", [65, 145, 197, 257, 577])
def test_odd_numbers_of_tokens_train_with_pooling_by_a_query_or_without(tokens: int) -> None:
    for pool in (Pool.CLS, Pool.MAP):
        side = int((tokens - 1) ** 0.5)
        fields = {"depth": 1, "dim": 16, "num_heads": 2, "patch": (4, 4), "pool": pool}
        cfg = models.variant("vit_b16", image_size=(4 * side,), dtype=DType.BFLOAT16, **fields)
        program = traced_for_h100(cfg)
        assert program.count(f"{FORWARD}_wrapper[") == 1 + (pool is Pool.MAP)
        assert program.count(f"{BACKWARD}_wrapper[") == 1 + (pool is Pool.MAP)


PADDED = [(65, 65), (145, 145), (197, 197), (257, 257), (577, 577), (1, 197)]
# Even lengths are not padded: what runs is JAX's own attention, whose bfloat16 on a CPU is off by
# 4 % of the largest value from 0.12 on.
EVEN = [(1, 196), (196, 196)]


@pytest.mark.parametrize(
    "queries, keys, dtype, atol",
    [
        *((*lengths, jnp.float32, 2e-6) for lengths in PADDED + EVEN),
        *((*lengths, jnp.bfloat16, 0.03) for lengths in PADDED),
    ],
)
def test_padding_changes_no_output_and_no_gradient(
    queries: int, keys: int, dtype: Any, atol: float
) -> None:
    # The kernel itself needs a GPU; the same lengths and mask go to XLA's.
    seeds = jax.random.split(jax.random.key(queries), 3)
    q, k, v = (
        jax.random.normal(seed, (2, 2, n, 16)).astype(dtype)
        for seed, n in zip(seeds, (queries, keys, keys), strict=True)
    )
    found = value_and_gradients(lambda *args: attention.cudnn(*args, implementation="xla"), q, k, v)
    wanted = value_and_gradients(attend, q, k, v)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=atol * np.abs(want).max(), rtol=0)


@pytest.mark.parametrize("target", [hardware.Target("tpu", "TPU v5 lite"), hardware.Target("cpu")])
def test_elsewhere_xla_attends_and_training_is_refused_in_one_line(target: hardware.Target) -> None:
    q = jnp.ones((1, 1, 2, 8), jnp.bfloat16)
    with hardware.tracing_for(target):
        np.testing.assert_array_equal(attend(q, q, q, impl=AttentionImpl.CUDNN), q)
        with refused_by("models.layers.attention.check_target", "model.attention"):
            check_target(AttentionImpl.CUDNN)
