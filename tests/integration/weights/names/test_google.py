# SPDX-License-Identifier: Apache-2.0
"""Google's .npz files: its own models' logits, and every layout, by an independent writer."""

import dataclasses
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.refusals import refused_by
from tests.unit.weights import google_writer as writer
from tests.unit.weights.names.test_google import (
    GAP,
    MAP,
    VIT,
    check_equal,
    logits,
    made,
    refused,
    save,
)
from vit_jax import models, weights
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.weights.resize import ResizeRule

GOLDEN = Path(__file__).parents[3] / "golden"
HYBRID = models.HybridConfig(
    image_size=(32,),
    dim=12,
    depth=1,
    num_heads=2,
    mlp_dim=20,
    num_classes=5,
    backbone_depths=(2, 1),
    backbone_widths=(32, 64),
    stem_width=16,
    num_groups=8,
)
BIT = models.BiTConfig(
    depths=(2, 1), widths=(32, 64), stem_width=16, num_groups=8, image_size=(32,), num_classes=5
)


def test_mixer_equals_vision_transformer() -> None:
    cfg = models.MixerConfig(
        image_size=(32,),
        patch=(8,),
        dim=32,
        depth=2,
        token_mlp_dim=20,
        channel_mlp_dim=64,
        num_classes=6,
    )
    variables = weights.load(f"npz:{GOLDEN / 'google_mixer.weights.npz'}", cfg)
    golden = np.load(GOLDEN / "google_mixer.golden.npz")
    found = logits(cfg, variables, golden["input"])
    np.testing.assert_allclose(found, golden["logits"], atol=5e-5, rtol=0)


@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("numbers", [writer.BEFORE_LINEN, writer.LINEN])
@pytest.mark.parametrize(
    "cfg",
    [
        VIT,
        dataclasses.replace(VIT, pre_logits_dim=7),
        GAP,
        MAP,
        dataclasses.replace(GAP, pos_embed=PosEmbed.SINCOS2D),
    ],
    ids=["vit", "pre_logits", "gap", "map", "sincos2d"],
)
def test_every_parameter_of_a_vit(
    cfg: models.ViTConfig, numbers: tuple[int, int, int, int], scan: bool, tmp_path: Path
) -> None:
    variables = made(cfg)
    arrays = writer.vit(variables["params"], cfg.num_heads, numbers=numbers, scan=scan)
    check_equal(weights.load(save(tmp_path, arrays), cfg), variables)


@pytest.mark.parametrize("norm_rank", [1, 4])
@pytest.mark.parametrize(
    "cfg",
    [
        HYBRID,
        dataclasses.replace(HYBRID, backbone_depths=(), backbone_widths=(), patch=(2,)),
    ],
    ids=["r50", "stem only"],
)
def test_every_parameter_of_a_hybrid(
    cfg: models.HybridConfig, norm_rank: int, tmp_path: Path
) -> None:
    variables = made(cfg)
    arrays = writer.vit(variables["params"], cfg.num_heads, norm_rank=norm_rank)
    check_equal(weights.load(save(tmp_path, arrays), cfg), variables)


def test_every_parameter_of_a_bit(tmp_path: Path) -> None:
    cfg = dataclasses.replace(BIT, depths=(11, 1))  # unit11 is no unit1 and a 1
    variables = made(cfg)
    arrays = writer.bit(variables["params"])
    check_equal(
        weights.load(save(tmp_path, {**arrays, "global_step": np.int64(3)}), cfg), variables
    )


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    arrays = writer.vit(made(VIT)["params"], VIT.num_heads)
    block = "Transformer/encoderblock_1"
    lacking = {k: v for k, v in arrays.items() if k != f"{block}/LayerNorm_1/scale"}
    assert f"lacks {block}/LayerNorm_1/scale [12]" in refused(tmp_path, lacking, VIT)
    deeper = dataclasses.replace(VIT, depth=1)
    assert f"has more than the model: {block}/" in refused(tmp_path, arrays, deeper)
    message = refused(tmp_path, arrays, dataclasses.replace(VIT, num_heads=2))
    assert "query/bias: in the file [3, 4], here [2, 6]" in message
    message = refused(tmp_path, arrays, dataclasses.replace(VIT, fc_norm=True, pool=Pool.GAP))
    assert "lacks fc_norm/bias" in message
    message = refused(tmp_path, arrays, VIT, skip=["nothing/like/it"])
    assert "unknown parameter in init.skip: 'nothing/like/it'; valid: blocks, cls_token" in message
    message = refused(tmp_path, arrays, VIT, skip=["^hed"])
    assert message == "unknown parameter in init.skip: '^hed'; did you mean 'head'?"
    arrays["pos_embedding"] = arrays.pop("Transformer/posembed_input/pos_embedding")[:, :, :3]
    assert "pos_embedding: in the file [1, 7, 3], here [1, 7, 12]" in refused(tmp_path, arrays, VIT)


def test_stacked_layers_of_another_depth(tmp_path: Path) -> None:
    arrays = writer.vit(made(VIT)["params"], VIT.num_heads, scan=True)
    for depth in (1, 3):
        cfg = dataclasses.replace(VIT, depth=depth)
        message = refused(tmp_path, arrays, cfg)
        assert f"/query/bias: in the file [2, 3, 4], here [{depth}, 3, 4]" in message
        assert message.endswith("and 12 more; choose the config it was made with")
    arrays["Transformer/encoderblock/LayerNorm_0/scale"] = np.float32(1)
    assert "LayerNorm_0/scale: in the file [], here [2, 12]" in refused(tmp_path, arrays, VIT)


def test_another_patch(tmp_path: Path) -> None:
    """Of as many pixels, but not of the same shape: never read as if it were."""
    cfg = dataclasses.replace(VIT, patch=(2, 8), image_size=(8, 16), pos_embed=PosEmbed.SINCOS2D)
    wide = dataclasses.replace(cfg, patch=(4, 4))
    arrays = writer.vit(made(wide)["params"], VIT.num_heads)
    message = refused(tmp_path, arrays, cfg, resize=ResizeRule.NONE)
    assert (
        "embedding/kernel: in the file [4, 4, 3, 12], here [2, 8, 3, 12] (resizing is off)"
        in message
    )
    kernel = weights.load(save(tmp_path, arrays), cfg)["params"]["patch_embed"]["kernel"]
    assert kernel.shape == (2, 8, 3, 12)
    with np.testing.assert_raises(AssertionError):
        np.testing.assert_array_equal(kernel, arrays["embedding/kernel"].reshape(kernel.shape))


def test_skipped_parameters_start_as_the_models_own(tmp_path: Path) -> None:
    variables = made(dataclasses.replace(VIT, num_classes=7))
    ref = save(tmp_path, writer.vit(variables["params"], VIT.num_heads))
    with refused_by("weights.apply._check_keys") as caught:
        weights.load(ref, VIT)
    assert "head/bias: in the file [7], here [5]" in str(caught.value)
    cfg = dataclasses.replace(VIT, zero_head=False, head_bias=-2.5)
    found = weights.load(ref, cfg, skip=["^head/"])["params"]
    own, _ = jax.jit(lambda k: models.init(models.create(cfg), cfg, k))(jax.random.key(0))
    check_equal(found["head"], own["head"])
    check_equal(found["blocks"], variables["params"]["blocks"])
    other = weights.load(ref, cfg, skip=["^head/"], key=jax.random.key(1))["params"]
    assert (other["head"]["kernel"] != found["head"]["kernel"]).any()
