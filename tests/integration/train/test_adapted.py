# SPDX-License-Identifier: Apache-2.0
"""Low-rank fine-tuning: what is trained, saved, merged and read again; prompts and biases alone."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.integration.train import test_resume
from tests.integration.train.test_finetune import arrays, config
from tests.refusals import refused_by
from tests.unit.weights.runs import save
from vit_jax import config as config_lib
from vit_jax import inference, models, trees, weights
from vit_jax.__main__ import main
from vit_jax.checkpoints import reader
from vit_jax.config.tree import Config
from vit_jax.cost.flops import count
from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.models.layers.pool import Pool
from vit_jax.models.lora import LoraConfig
from vit_jax.objectives import MaeConfig
from vit_jax.optim import OptimConfig
from vit_jax.train import build as build_lib
from vit_jax.train.loop import fit
from vit_jax.weights.config import InitConfig

PATTERN = "attn/(qkv|proj)|mlp"
IMAGES = jnp.asarray(np.random.default_rng(0).standard_normal((4, 32, 32, 1)), jnp.float32)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Train on the first five digits; the workdir also holds an older checkpoint."""
    cfg = config(2)
    cfg.data.classes, cfg.model.num_classes = (0, 1, 2, 3, 4), 5
    place = tmp_path_factory.mktemp("base") / "pretrained"
    fit(cfg, place)
    return place


def tuning(pretrained: Path, steps: int = 3, **fields: Any) -> Config:
    cfg = config(steps)
    cfg.model.zero_head = False
    cfg.init = InitConfig(weights=f"ckpt:{pretrained}", skip=("^head",))
    cfg.lora = LoraConfig(**{"pattern": PATTERN, "rank": 2, "alpha": 3.0, **fields})
    cfg.optim = OptimConfig(lr=0.02, weight_decay=0.1)
    cfg.ema_decay = 0.5
    return cfg


@pytest.fixture(scope="module")
def tuned(pretrained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    place = tmp_path_factory.mktemp("tuned") / "run"
    return place, fit(tuning(pretrained), place).state


def unmerged(pretrained: Path, cfg: Config, params: Any) -> Any:
    """Return the output of the base with A and B beside its kernels."""
    cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, num_classes=10))
    base = weights.read(f"ckpt:{pretrained}", cfg.model, skip=("^head",))
    base = trees.nest({name.partition("/")[2]: value for name, value in base.items()})
    objective = build_lib.build(cfg, 1000).objective
    joined = objective.whole(params, {"base": base})
    return models.create(cfg.model).apply({"params": joined}, IMAGES), base


def test_the_run_saves_a_b_and_the_head_alone(tuned: tuple[Path, Any], pretrained: Path) -> None:
    place, state = tuned
    manifest = reader.find(place).manifest
    parts = ("attn/proj", "attn/qkv", "mlp/fc1", "mlp/fc2")
    own = {f"blocks/{part}/lora_{x}" for part in parts for x in "ab"} | {"head/kernel", "head/bias"}
    kinds = {"params": "params/", "ema": "ema/params/", "opt_state": "opt_state/"}
    for kind, prefix in kinds.items():
        names = [name for name in manifest.leaves if name.startswith(prefix)]
        assert names
        arrays_of = [name for name in names if manifest.leaves[name][1]]
        assert all(name.endswith(tuple(own)) for name in arrays_of), kind
    assert set(arrays(state.params)) == own
    saved = manifest.metadata["base"]
    assert saved["weights"] == f"ckpt:{pretrained / 'checkpoints'}@2"
    assert (saved["scale"], saved["skip"], len(saved["digest"])) == (1.5, ["^head"], 16)


def test_merged_weights_compute_what_the_run_does(
    tuned: tuple[Path, Any], pretrained: Path, tmp_path: Path
) -> None:
    place, state = tuned
    loaded = inference.load(f"ckpt:{place}@latest")
    expected, base = unmerged(pretrained, tuning(pretrained), state.params)
    for name, value in trees.named_leaves(state.params):
        if name.endswith("lora_b"):
            assert np.abs(value).max() > 1e-3, name
    merged = loaded.variables["params"]
    found = models.create(loaded.model).apply(loaded.variables, IMAGES)
    np.testing.assert_allclose(found.logits, expected.logits, atol=1e-6, rtol=0)
    np.testing.assert_allclose(found.features, expected.features, atol=1e-6, rtol=0)
    np.testing.assert_array_equal(merged["patch_embed"]["kernel"], base["patch_embed"]["kernel"])
    # convert writes the same, for timm.
    file = tmp_path / "merged.safetensors"
    assert main(["vit_jax", "convert", f"--from=ckpt:{place}@latest", f"--to=timm:{file}"]) == 0
    for key, value in weights.to_timm(loaded.variables, loaded.model).items():
        np.testing.assert_array_equal(load_file(file)[key], value, err_msg=key)
    # The average, and a third run that starts from the second.
    ema = weights.read(f"ckpt:{place}@latest", loaded.model, ema=True)
    joined, _ = unmerged(pretrained, tuning(pretrained), state.ema["params"])
    third = models.create(loaded.model).apply(trees.nest(dict(ema)), IMAGES)
    np.testing.assert_allclose(third.logits, joined.logits, atol=1e-6, rtol=0)
    cfg = tuning(place, 1)
    cfg.init.weights = f"ckpt:{place}@latest"
    cfg.init.skip = ()
    fit(cfg, tmp_path / "third")
    assert inference.load(str(tmp_path / "third")).has_head


def test_a_run_starts_as_its_base_to_the_bit(pretrained: Path) -> None:
    cfg = tuning(pretrained)
    cfg = config_lib.fitted(cfg, 1293, 10)
    parts = build_lib.build(cfg, 1293)
    state = build_lib.init_state(cfg, parts, sharding.make_mesh(cfg.mesh))
    found, base = unmerged(pretrained, cfg, state.params)
    plain = {**base, "head": state.params["head"]}
    expected = models.create(cfg.model).apply({"params": plain}, IMAGES)
    np.testing.assert_array_equal(found.logits, expected.logits)


def test_without_factors_a_layer_traces_nothing_new(pretrained: Path) -> None:
    model = config(1).model
    params = models.abstract(model)["params"]
    apply = models.create(model).apply
    text = str(jax.make_jaxpr(lambda p, x: apply({"params": p}, x).logits)(params, IMAGES))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.families.vit.Dense, "_factors", lambda self: None)
        plain = str(jax.make_jaxpr(lambda p, x: apply({"params": p}, x).logits)(params, IMAGES))
    assert text == plain


def test_no_gradient_of_a_frozen_kernel_is_computed(pretrained: Path) -> None:
    cfg = config_lib.fitted(tuning(pretrained), 1293, 10)
    parts = build_lib.build(cfg, 1293)
    batch = {"image": jax.ShapeDtypeStruct((4, 32, 32, 1), "uint8")}
    batch |= {"label": jax.ShapeDtypeStruct((4,), "int32")}
    whole = dataclasses.replace(cfg, lora=LoraConfig())
    full = build_lib.build(whole, 1293)

    def kernel_gradients(parts: build_lib.Parts, frozen: Any) -> int:
        text = str(jax.make_jaxpr(parts.programs[0].step)(parts.abstract, frozen, batch))
        return sum(f":f32[{shape}] = dot_general" in text for shape in ("16,48", "48,16"))

    assert kernel_gradients(full, {}) == 1
    assert kernel_gradients(parts, parts.frozen) == 0
    # As counted: less than two thirds of the matmuls of a full step, and more than a half.
    share = build_lib.example_flops(parts) / build_lib.example_flops(full)
    assert 0.6 < share < 0.8
    per_image = build_lib.example_flops(parts)
    assert count(parts.programs[0].step, parts.abstract, parts.frozen, batch) == pytest.approx(
        4 * per_image, rel=0.02
    )


@pytest.mark.parametrize(
    "freeze, least, most",
    # A probe has the forward pass and one matmul of the head; biases spare a matmul of each three.
    [("^(?!head)", 0.33, 0.37), (r"^(?!.*bias$)", 0.6, 0.72)],
)
def test_no_gradient_of_a_frozen_parameter_is_computed(
    freeze: str, least: float, most: float
) -> None:
    cfg = config_lib.fitted(config(2), 1293, 10)
    full = build_lib.build(cfg, 1293)
    cfg.optim = dataclasses.replace(cfg.optim, freeze=freeze)
    parts = build_lib.build(cfg, 1293)
    batch = {"image": jax.ShapeDtypeStruct((4, 32, 32, 1), "uint8")}
    batch |= {"label": jax.ShapeDtypeStruct((4,), "int32")}
    steps = [count(each.programs[0].step, each.abstract, {}, batch) for each in (full, parts)]
    assert least < steps[1] / steps[0] < most
    assert build_lib.example_flops(parts) * 4 == pytest.approx(steps[1], rel=0.02)


# All axes of the mesh at once, as large runs have them. test_step.py has each alone, without LoRA.
LAYOUTS = {
    "accumulated with remat": {"accum_steps": 2, "remat": models.Remat.FULL},
    "all": {"mesh": MeshConfig(data=2, fsdp=2, tensor=2), "remat": models.Remat.DOTS},
    "bfloat16": {"dtype": models.DType.BFLOAT16},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_trains_the_same(
    name: str, tuned: tuple[Path, Any], pretrained: Path, tmp_path: Path
) -> None:
    fields = dict(LAYOUTS[name])
    cfg = tuning(pretrained)
    for key in ("remat", "dtype"):
        if key in fields:
            setattr(cfg.model, key, fields.pop(key))
    cfg = dataclasses.replace(cfg, **fields)
    cfg.evals, cfg.checkpoint.keep_best = {}, 0
    expected = arrays(tuned[1].params)
    found = arrays(fit(cfg, tmp_path / "run").state.params)
    assert found.keys() == expected.keys()
    loose = 0.02 if name == "bfloat16" else 2e-4  # Adam's first steps are as long as lr, 0.02
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, atol=loose, rtol=0, err_msg=key)


def test_factors_are_sharded_as_their_kernel(pretrained: Path) -> None:
    sizes = {"data": 1, "fsdp": 2, "tensor": 2}
    spec = {
        name: tuple(sharding.spec(f"blocks/{name}", shape, sizes))
        for name, shape in {
            "attn/qkv/lora_a": (3, 16, 2),
            "attn/qkv/lora_b": (3, 2, 48),
            "mlp/fc2/lora_a": (3, 32, 2),
            "mlp/fc2/lora_b": (3, 2, 16),
        }.items()
    }
    assert spec == {
        "attn/qkv/lora_a": (None, "fsdp", None),
        "attn/qkv/lora_b": (None, None, "tensor"),
        "mlp/fc2/lora_a": (None, "tensor", None),
        "mlp/fc2/lora_b": (None, None, "fsdp"),
    }


def test_a_base_that_is_gone_or_changed_is_named(
    tuned: tuple[Path, Any], pretrained: Path, tmp_path: Path
) -> None:
    base, place = pretrained, tmp_path / "run"
    shutil.copytree(tuned[0], place)
    shutil.move(base, tmp_path / "away")
    longer = dataclasses.replace(tuning(base), duration="4 steps")
    for use in (
        lambda: inference.load(str(place)),
        lambda: fit(longer, place, allow_config_change=True),
    ):
        with refused_by("checkpoints.reader._checkpoints") as refused:
            use()
        assert str(base) in str(refused.value)
    # Another run of as many steps in its place.
    save(base, dataclasses.replace(config(2).model, num_classes=5), {2: None})
    for use in (
        lambda: inference.load(str(place)),
        lambda: fit(longer, place, allow_config_change=True),
    ):
        with pytest.raises(UserError, match=r"has changed \(digest \w+, not \w+\)"):
            use()
    shutil.rmtree(base)
    shutil.move(tmp_path / "away", base)
    assert fit(longer, place, allow_config_change=True).step == 4


@pytest.mark.parametrize(
    "change, told",
    [
        (lambda cfg: setattr(cfg, "init", InitConfig()), "init.weights"),
        (lambda cfg: setattr(cfg.model, "mup_base_dim", 8), "mup_base_dim"),
        (lambda cfg: setattr(cfg, "objective", MaeConfig()), "MaeConfig"),
    ],
)
def test_what_it_does_not_go_with_is_refused(change: Any, told: str, pretrained: Path) -> None:
    cfg = tuning(pretrained)
    change(cfg)
    if told == "MaeConfig":
        cfg.evals, cfg.checkpoint.keep_best, cfg.model.num_classes = {}, 0, 0
    with refused_by("config.checks.lora_fits", "lora.pattern") as refused:
        config_lib.check(cfg)
    assert told in str(refused.value)


def test_a_layer_that_would_stay_random_is_refused(pretrained: Path, tmp_path: Path) -> None:
    cfg = tuning(pretrained)
    cfg.init.skip = ("^head", "^norm/")
    with pytest.raises(UserError, match=r"no norm/.*, which would stay frozen at random"):
        fit(cfg, tmp_path)


@pytest.mark.slow
def test_a_continued_run_ends_with_the_same_bits(pretrained: Path, tmp_path: Path) -> None:
    run = (
        f"--config={test_resume.ROOT}/configs/vit_mu_digits.py",
        *(f"--config.model.{n}={x}" for n, x in (("dim", 16), ("depth", 1), ("mlp_dim", 32))),
        "--config.model.num_heads=2",
        "--config.model.pos_embed=learned",
        "--config.model.dropout_rate=0.1",
        "--config.data.batch_size=16",
        f"--config.init.weights=ckpt:{pretrained}",
        "--config.init.new_head=true",
        "--config.lora.pattern=qkv|fc1",
        "--config.duration=30 steps",
        "--config.optim.warmup=5 steps",
        "--config.checkpoint.every=5 steps",
        "--config.checkpoint.keep=9",
        "--config.checkpoint.keep_best=0",
        "--config.log.every=1 steps",
        "--config.log.tensorboard=false",
        "--config.evals.test.report=false",
    )
    whole, rest = tmp_path / "whole", tmp_path / "rest"
    test_resume.finish(whole, run=run)
    shutil.copytree(whole / "checkpoints" / "10", rest / "checkpoints" / "10")
    test_resume.finish(rest, run=run)
    assert "continuing" in rest.with_suffix(".log").read_text()
    assert test_resume.digest(rest, run) == test_resume.digest(whole, run)


def test_the_dry_run_plans_less(pretrained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from vit_jax.cli import dry_run

    cfg = tuning(pretrained)
    text, _ = dry_run.dry_run(cfg)
    size = trees.num_params(models.abstract(config_lib.fitted(cfg, 1, 10).model)["params"]) - 170
    assert f"besides {size:,} frozen ones of ckpt:{pretrained}" in text
    assert "patch_embed" not in text


@pytest.mark.slow
def test_prompts_alone(tmp_path: Path) -> None:
    """VPT (arXiv:2203.12119), shallow: registers that the base lacks, after its class token."""
    base = config(2)
    base.model.class_token, base.model.pool = True, Pool.CLS
    fit(base, tmp_path / "base")
    cfg = config(2)
    cfg.model.class_token, cfg.model.pool, cfg.model.num_registers = True, Pool.CLS, 3
    cfg.init = InitConfig(weights=f"ckpt:{tmp_path / 'base'}", skip=("^head", "^reg_token"))
    cfg.optim = OptimConfig(lr=0.1, freeze="^(?!head|reg_token)")
    params = arrays(fit(cfg, tmp_path / "run").state.params)
    begun = weights.read(f"ckpt:{tmp_path / 'base'}", base.model)
    table = begun["params/pos_embed"]
    np.testing.assert_array_equal(params["pos_embed"][:, [0, *range(4, 20)]], table)
    assert not params["pos_embed"][:, 1:4].any()
    assert np.abs(params["reg_token"]).max() > 0.01
    for name, value in params.items():
        if not name.startswith(("head", "reg_token", "pos_embed")):
            np.testing.assert_array_equal(value, begun[f"params/{name}"], err_msg=name)


@pytest.mark.slow
def test_biases_alone(pretrained: Path, tmp_path: Path) -> None:
    """BitFit (arXiv:2106.10199)."""
    cfg = tuning(pretrained, 2)
    cfg.lora = LoraConfig()
    cfg.optim = OptimConfig(lr=0.1, freeze="^(?!head)(?!.*bias$)")
    params = arrays(fit(cfg, tmp_path / "run").state.params)
    begun = weights.read(f"ckpt:{pretrained}", cfg.model, skip=("^head",))
    moved = {
        name for name, x in params.items() if not np.array_equal(x, begun.get(f"params/{name}"))
    }
    assert moved == {name for name in params if name.endswith("bias") or name.startswith("head")}
