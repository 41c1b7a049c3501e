# SPDX-License-Identifier: Apache-2.0
"""What DeiT adds to the ViT: the distillation token with its head, and DeiT III's choices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.integration.models.test_vit_parity import GOLDEN, TOLERANCE
from tests.unit.models.families.test_vit import forward
from tests.unit.models.tiny import TINY
from vit_jax import models, weights
from vit_jax.models.layers.drop import DropPathRule
from vit_jax.models.layers.init import Init
from vit_jax.models.layers.mlp import Gelu


@pytest.mark.parametrize("jit", [True, False], ids=["jitted", "eager"])
def test_distilled_equals_timm(jit: bool) -> None:
    golden = np.load(GOLDEN / "deit_distilled.npz")
    cfg = models.variant(
        "deit_ti16_distilled",
        image_size=(32,),
        patch=(8,),
        num_classes=10,
        dim=48,
        depth=3,
        num_heads=3,
        mlp_dim=192,
    )
    variables = weights.from_timm(load_file(GOLDEN / "deit_distilled.safetensors"), cfg)
    apply = jax.jit(models.create(cfg).apply) if jit else models.create(cfg).apply
    with jax.default_matmul_precision("highest"):
        out = apply(variables, jnp.asarray(golden["input"]))
    np.testing.assert_allclose(out.logits, golden["logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.features, golden["pre_logits"], atol=TOLERANCE, rtol=0)
    np.testing.assert_allclose(out.tokens, golden["features"], atol=TOLERANCE, rtol=0)


def test_both_heads_are_at_hand() -> None:
    params, _, out = forward(TINY["deit"])
    np.testing.assert_allclose(
        out.logits, (out.aux["cls_logits"] + out.aux["dist_logits"]) / 2, atol=1e-6
    )
    assert not np.allclose(out.aux["cls_logits"], out.aux["dist_logits"])
    assert {"cls_token", "dist_token", "head", "head_dist"} <= set(params)
    # Positions cover both tokens.
    assert params["pos_embed"].shape[1] == 2 + 4


def test_published_choices() -> None:
    for name, cfg in models.VARIANTS.items():
        if name.startswith("deit"):
            assert (cfg.gelu, cfg.init, cfg.zero_head) == (Gelu.ERF, Init.TIMM, False), name
            assert cfg.distilled == name.endswith("_distilled")
    cfg = models.variant("deit3_b16")
    assert (cfg.layer_scale, cfg.pos_embed_prefix) == (1e-4, False)
    assert cfg.drop_path_rule is DropPathRule.CONSTANT
    params, _, _ = forward(models.variant("deit3_s16", depth=1, dim=16, mlp_dim=16, num_heads=2))
    np.testing.assert_array_equal(params["blocks"]["ls1"]["gamma"], np.float32(1e-4))
    assert float(np.std(params["cls_token"])) == pytest.approx(0.02, rel=0.5)
