# SPDX-License-Identifier: Apache-2.0
"""Google's .npz files: its own models' logits, and every layout, by an independent writer."""

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.weights import google_writer as writer
from vit_jax import models, weights
from vit_jax.errors import UserError
from vit_jax.models.layers.pool import Pool
from vit_jax.models.layers.posemb import PosEmbed
from vit_jax.weights.resize import Resize

GOLDEN = Path(__file__).parent.parent / "golden"
VIT = models.ViTConfig(
    image_size=(8, 12), patch=(4,), dim=12, depth=2, num_heads=3, mlp_dim=20, num_classes=5
)
GAP = dataclasses.replace(VIT, pool=Pool.GAP, class_token=False)
MAP = dataclasses.replace(VIT, pool=Pool.MAP, class_token=False)
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
MIXER = models.MixerConfig(
    image_size=(8,), patch=(4,), dim=12, depth=2, token_mlp_dim=6, channel_mlp_dim=20, num_classes=5
)
BIT = models.BiTConfig(
    depths=(2, 1), widths=(32, 64), stem_width=16, num_groups=8, image_size=(32,), num_classes=5
)


def made(cfg: models.ModelConfig, seed: int = 0) -> Any:
    return writer.random_variables(models.abstract(cfg), seed)


def save(path: Path, arrays: dict[str, np.ndarray], prefix: str = "") -> str:
    np.savez(path / "x.npz", **{prefix + key: value for key, value in arrays.items()})
    return f"npz:{path / 'x.npz'}"


def check_equal(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def logits(cfg: models.ModelConfig, variables: Any, image: np.ndarray) -> jax.Array:
    with jax.default_matmul_precision("highest"):
        return jax.jit(models.create(cfg).apply)(variables, jnp.asarray(image)).logits


def refused(
    path: Path, arrays: dict[str, np.ndarray], cfg: models.ModelConfig, **options: Any
) -> str:
    with pytest.raises(UserError) as caught:
        weights.load(save(path, arrays), cfg, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def test_every_parameter_of_a_mixer(tmp_path: Path) -> None:
    variables = made(MIXER)
    check_equal(weights.load(save(tmp_path, writer.mixer(variables["params"])), MIXER), variables)


def test_every_parameter_of_a_bit(tmp_path: Path) -> None:
    cfg = dataclasses.replace(BIT, depths=(11, 1))  # unit11 is no unit1 and a 1
    variables = made(cfg)
    arrays = writer.bit(variables["params"])
    check_equal(
        weights.load(save(tmp_path, {**arrays, "global_step": np.int64(3)}), cfg), variables
    )


@pytest.mark.parametrize(
    "prefix, beside",
    [
        ("", ["opt/0/count", "opt/0/mu/head/kernel", "extra/step"]),
        ("params/", ["opt/0/mu/params/head/kernel", "step"]),
        ("opt/target/", ["opt/state/step", "opt/state/param_states/head/kernel/grad_ema"]),
        ("params/img/", ["params/txt/head/kernel", "params/t", "params/b", "opt/0/mu"]),
    ],
)
def test_prefixes_and_what_is_beside_the_network(
    prefix: str, beside: list[str], tmp_path: Path
) -> None:
    variables = made(VIT)
    arrays = writer.vit(variables["params"], VIT.num_heads)
    arrays = {prefix + key: value for key, value in arrays.items()}
    # As many numbers as one likes, and of any type: none of it is read.
    arrays |= {key: np.int64(3) if "step" in key else np.full(9, np.nan) for key in beside}
    check_equal(weights.load(save(tmp_path, arrays), VIT), variables)
    arrays[f"{prefix}Transformer/extra/kernel"] = np.zeros(3)
    message = refused(tmp_path, arrays, VIT)
    assert f"has more than the model: {prefix}Transformer/extra/kernel [3]" in message


def test_bfloat16(tmp_path: Path) -> None:
    variables = made(MAP)
    variables = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), variables)
    arrays = writer.vit(variables["params"], MAP.num_heads, scan=True)
    found = weights.load(save(tmp_path, arrays, "params/"), MAP)
    assert {x.dtype for x in jax.tree.leaves(found)} == {np.dtype(np.float32)}
    check_equal(found, jax.tree.map(lambda x: x.astype(np.float32), variables))


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
    message = refused(tmp_path, arrays, cfg, resize=Resize.NONE)
    assert (
        "embedding/kernel: in the file [4, 4, 3, 12], here [2, 8, 3, 12] (resizing is off)"
        in message
    )
    kernel = weights.load(save(tmp_path, arrays), cfg)["params"]["patch_embed"]["kernel"]
    assert kernel.shape == (2, 8, 3, 12)
    with np.testing.assert_raises(AssertionError):
        np.testing.assert_array_equal(kernel, arrays["embedding/kernel"].reshape(kernel.shape))


def test_families_without_files_of_google(tmp_path: Path) -> None:
    message = refused(tmp_path, {"x": np.zeros(1)}, models.variant("swin_t"))
    assert "there is no .npz layout for Swin" in message
    assert "timm:FILE" in message


def test_skipped_parameters_start_as_the_models_own(tmp_path: Path) -> None:
    variables = made(dataclasses.replace(VIT, num_classes=7))
    ref = save(tmp_path, writer.vit(variables["params"], VIT.num_heads))
    with pytest.raises(UserError, match=r"head/bias: in the file \[7\], here \[5\]"):
        weights.load(ref, VIT)
    cfg = dataclasses.replace(VIT, zero_head=False, head_bias=-2.5)
    found = weights.load(ref, cfg, skip=["^head/"])["params"]
    own, _ = jax.jit(lambda k: models.init(models.create(cfg), cfg, k))(jax.random.key(0))
    check_equal(found["head"], own["head"])
    check_equal(found["blocks"], variables["params"]["blocks"])
    other = weights.load(ref, cfg, skip=["^head/"], key=jax.random.key(1))["params"]
    assert (other["head"]["kernel"] != found["head"]["kernel"]).any()


def test_references(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    variables = made(MIXER)
    save(tmp_path, writer.mixer(variables["params"]))
    check_equal(weights.load("npz:~/x.npz", MIXER), variables)
    for ref in ("nzp:x.npz", "x.npz", "", "https://x.npz"):
        with pytest.raises(UserError, match="unknown kind of weights in"):
            weights.load(ref, VIT)
    with pytest.raises(UserError, match="names no file"):
        weights.load("npz:", VIT)
    with pytest.raises(UserError, match="no such file"):
        weights.load(f"npz:{tmp_path / 'y.npz'}", VIT)
