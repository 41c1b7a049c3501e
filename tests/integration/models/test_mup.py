# SPDX-License-Identifier: Apache-2.0
"""Maximal update parametrisation: what a ViT tuned at one width does at another."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import mup
from benchmarks.mup import BASE, CHECKED, coordinates, get_model, slope
from configs import vit_mu_digits
from tests.unit.inference.exported import trained
from tests.unit.models.test_mup import everything
from tests.unit.models.tiny import TINY, shrink
from tests.unit.weights.runs import save
from vit_jax import models, trees, weights
from vit_jax.cli.dry_run import dry_run
from vit_jax.errors import UserError
from vit_jax.export import model as export
from vit_jax.export.model import Format, WeightDType
from vit_jax.models.layers.init import Init
from vit_jax.optim import OptimConfig, Optimizer, Schedule, describe, make_optimizer
from vit_jax.settings.durations import Clock
from vit_jax.train import build
from vit_jax.weights.export import standard
from vit_jax.weights.readers.ckpt import Checkpoint

RULES = {
    "hidden": r"^blocks/.*kernel$",
    "head": "^head/kernel$",
    "input": "^patch_embed|^pos_embed",
}


@functools.cache
def changes(width: int, optim: OptimConfig, mup: bool = True, heads: int = 2) -> dict[str, float]:
    """Return how far activations move in six steps, at a width."""
    base = {"mup_base_dim": BASE, "mup_base_heads": heads} if mup else {}
    model = get_model(width, "standard", "head_dim", depth=1, **CHECKED, **base)
    return coordinates(model, optim)


def adam(**fields: Any) -> OptimConfig:
    return OptimConfig(lr=0.01, schedule=Schedule.CONSTANT, **fields)


def powers(*per_width: dict[str, float], widths: tuple[int, ...]) -> dict[str, float]:
    return {name: slope(widths, [each[name] for each in per_width]) for name in per_width[0]}


def test_changes_do_not_depend_on_the_width() -> None:
    widths = (BASE, 128)
    found = powers(*(changes(width, adam()) for width in widths), widths=widths)
    assert set(found) == {"positions", "patches", "attention", "blocks", "logits"}
    assert max(map(abs, found.values())) < 0.15, found


def test_changes_of_the_standard_parametrisation_do() -> None:
    wide = changes(128, adam(), mup=False)
    found = powers(changes(BASE, adam()), wide, widths=(BASE, 128))
    assert min(found[name] for name in ("attention", "blocks", "logits")) > 0.3, found


@pytest.mark.parametrize(
    ("rule", "factor", "moved"),
    [("hidden", 4.0, "blocks"), ("head", 4.0, "logits"), ("input", 0.25, "patches")],
)
def test_each_rule_of_the_learning_rate_is_needed(rule: str, factor: float, moved: str) -> None:
    """Undone by a multiplier, its activations change with the width, whatever the others do."""
    without = changes(128, adam(lr_multipliers=((RULES[rule], factor),)))
    found = powers(changes(BASE, adam()), without, widths=(BASE, 128))
    assert abs(found[moved]) > 0.3, found


def test_the_factor_on_attention_is_needed() -> None:
    without = changes(128, adam(), heads=0)
    found = powers(changes(BASE, adam()), without, widths=(BASE, 128))
    assert found["attention"] > 0.3, found


@pytest.mark.parametrize(
    ("name", "lr", "fields"),
    [
        # Without the others' steps, which would hide those of the hidden kernels.
        (Optimizer.MUON, 0.05, {"lr_multipliers": (("patch_embed|pos_embed|bias$|scale$", 0.05),)}),
        (Optimizer.SGD, 0.1, {"clip_norm": 0.0}),
    ],
)
def test_muon_and_sgd_have_rules_of_their_own(
    name: Optimizer, lr: float, fields: dict[str, Any]
) -> None:
    """Lion's and Adafactor's is AdamW's, whose check is above: `SCALED` has them all."""
    optim = OptimConfig(name=name, lr=lr, schedule=Schedule.CONSTANT, **fields)
    widths = (BASE, 128)
    found = powers(*(changes(width, optim) for width in widths), widths=widths)
    # SGD moves attention by what is left of random signs, in so few steps.
    found = {k: v for k, v in found.items() if (name, k) != (Optimizer.SGD, "attention")}
    assert max(map(abs, found.values())) < 0.2, found


SCALED = {  # optimizer: what multiplies the rate of hidden kernels, the head's, the others'
    Optimizer.ADAMW: (1 / 4, 1 / 4, 1),
    Optimizer.LION: (1 / 4, 1 / 4, 1),
    Optimizer.ADAFACTOR: (1 / 4, 1 / 4, 1),
    Optimizer.MUON: (1 / 2, 1 / 4, 1),
    Optimizer.SGD: (1, 1 / 4, 4),
}
HIDDEN = {
    *(f"blocks/{name}/kernel" for name in ("attn/qkv", "attn/proj", "mlp/fc1", "mlp/fc2")),
    *(f"map_pool/{name}/kernel" for name in ("q", "kv", "proj", "mlp/fc1", "mlp/fc2")),
}
HEAD_NORM = {f"blocks/attn/{x}_norm/{name}" for x in "qk" for name in ("scale", "bias")}


@pytest.mark.parametrize("name", SCALED)
def test_the_factor_of_every_parameter(name: Optimizer) -> None:
    cfg = everything()
    rows = describe(OptimConfig(name=name), models.abstract(cfg)["params"], models.growth(cfg))
    found = {row.parameter: float(row.lr) for row in rows}
    hidden, head, other = SCALED[name]
    wanted = dict.fromkeys(found, other) | dict.fromkeys(HIDDEN, hidden)
    wanted |= {"head/kernel": head, "head/bias": 1}
    # Heads are twice as wide as the base's.
    wanted |= dict.fromkeys(HEAD_NORM, 2 if name == Optimizer.SGD else 1)
    assert found == wanted
    assert {"cls_token", "reg_token", "pos_embed", "map_pool/latent", "blocks/ls1/gamma"} <= set(
        found
    )


def test_the_heads_of_a_distilled_model_and_the_backbone_of_a_hybrid() -> None:
    for family, names in {
        "deit": {"head/kernel": "0.25", "head_dist/kernel": "0.25", "dist_token": "1"},
        "hybrid": {"backbone/stem/conv/kernel": "1", "patch_embed/kernel": "1"},
    }.items():
        cfg = dataclasses.replace(TINY[family], mup_base_dim=4)
        rows = describe(OptimConfig(), models.abstract(cfg)["params"], models.growth(cfg))
        found = {row.parameter: row.lr for row in rows}
        assert {name: found[name] for name in names} == names
    backbone = dataclasses.replace(TINY["hybrid"], mup_base_dim=4)
    sgd = OptimConfig(name=Optimizer.SGD, clip_norm=0.0)
    rows = describe(sgd, models.abstract(backbone)["params"], models.growth(backbone))
    assert {row.lr for row in rows if row.parameter.startswith("backbone/")} == {"1"}


def test_it_multiplies_with_the_other_factors_and_leaves_the_decay_alone() -> None:
    cfg = shrink(models.variant("vit_b16", patch=(4, 4)), mup_base_dim=4, zero_head=False)
    optim = OptimConfig(
        lr=0.1,
        schedule=Schedule.CONSTANT,
        weight_decay=0.5,
        layer_decay=0.5,
        lr_multipliers=(("mlp", 3.0),),
    )
    params = jax.tree.map(lambda x: jnp.ones(x.shape), models.abstract(cfg)["params"])
    rows = {row.parameter: row.lr for row in describe(optim, params, models.growth(cfg))}
    assert rows["blocks/mlp/fc1/kernel"] == "0.188 to 0.375"  # 3 / 4 of 1/4 and 1/2
    assert rows["patch_embed/kernel"] == "0.125"
    clock = Clock(batch_size=1, num_examples=1, total_steps=10)
    tx, _ = make_optimizer(optim, params, clock, models.growth(cfg))
    grads = jax.tree.map(jnp.ones_like, params)
    updates, _ = jax.jit(lambda g, p: tx.update(g, tx.init(p), p))(grads, params)
    found = dict(trees.named_leaves(updates))["blocks/mlp/fc1/kernel"]
    for layer, factor in ((0, 3 / 4), (1, 3 / 2)):
        # Adam's first step is 1 everywhere; a quarter of that, but all of the decay.
        np.testing.assert_allclose(found[layer], -0.1 * factor * (1 / 4 + 0.5), rtol=1e-5)


def drawn(cfg: models.ViTConfig) -> dict[str, Any]:
    init = jax.jit(lambda key: models.init(models.create(cfg), cfg, key)[0])
    return dict(trees.named_leaves(init(jax.random.key(0))))


@pytest.mark.parametrize("init", [Init.JAX, Init.TIMM])
def test_initial_values(init: Init) -> None:
    fields = {"init": init, "zero_head": False, "num_classes": 64, "qk_norm": False}
    fields |= {"depth": 1, "mup_base_dim": 64}
    wide = drawn(everything(**fields, dim=256, mlp_dim=512, num_heads=4))
    base = drawn(everything(**fields, dim=64, mlp_dim=128))
    for name, value in wide.items():
        wanted = float(jnp.std(base[name]))
        if name in HIDDEN:
            wanted /= 2
        elif name == "head/kernel":
            wanted /= 4
        if wanted > 1e-7:  # a constant's is its rounding
            tolerance = 4 / math.sqrt(2 * base[name].size)  # four deviations of so many numbers'
            assert float(jnp.std(value)) == pytest.approx(wanted, rel=tolerance), name


def test_at_the_width_of_the_base_nothing_differs_by_a_bit() -> None:
    plain = everything(init=Init.TIMM, mup_base_dim=0, mup_base_heads=0)
    base = dataclasses.replace(plain, mup_base_dim=plain.dim, mup_base_heads=plain.num_heads)
    assert models.growth(base) is not None
    image = jax.random.normal(jax.random.key(1), (2, *models.input_shape(plain)))
    optim = OptimConfig(weight_decay=0.1)
    clock = Clock(batch_size=1, num_examples=1, total_steps=10)

    @functools.partial(jax.jit, static_argnums=0)
    def step(cfg: models.ViTConfig) -> Any:
        module = models.create(cfg)
        params, _ = models.init(module, cfg, jax.random.key(0))
        tx, _ = make_optimizer(optim, params, clock, models.growth(cfg))

        def loss(params: Any) -> jax.Array:
            return (module.apply({"params": params}, image).logits ** 2).sum()  # pyright: ignore[reportAttributeAccessIssue]

        grads = jax.grad(loss)(params)
        return params, grads, tx.update(grads, tx.init(params), params)

    jax.tree.map(np.testing.assert_array_equal, step(plain), step(base))


def test_logits_of_attention_are_divided_by_the_width_of_a_head() -> None:
    cfg = everything(qk_norm=False, depth=1)
    plain = dataclasses.replace(cfg, mup_base_dim=0, mup_base_heads=0)
    assert models.logit_factor(cfg) == 0.5**0.5  # sqrt(4) / 8 in all, for 1 / sqrt(8)
    params = trees.nest(drawn(plain))
    image = jax.random.normal(jax.random.key(1), (1, *models.input_shape(cfg)))

    @functools.partial(jax.jit, static_argnums=0)
    def first(cfg: models.ViTConfig) -> jax.Array:
        """Return what the first block's softmax sees; blocks after it see other tokens."""
        _, kept = models.captured(models.create(cfg), {"params": params}, image)
        logits = jnp.log(kept["blocks/attn/weights"][0])
        return logits - logits.mean(axis=-1, keepdims=True)

    np.testing.assert_allclose(first(cfg), first(plain) * 0.5**0.5, atol=1e-5)


def test_weights_of_another_attention_are_refused(tmp_path: Path) -> None:
    cfg = everything()
    with pytest.raises(UserError, match=r"timm:x.safetensors was trained .* set model.mup_base_he"):
        weights.load("timm:x.safetensors", cfg)
    save(tmp_path, cfg, {1: None})
    assert Checkpoint(str(tmp_path)).model == cfg  # so what loads a run predicts as it did
    weights.read(f"ckpt:{tmp_path}", cfg, only_check=True)
    plain = standard(cfg)
    with pytest.raises(UserError, match=r"multiplies attention logits by 0\.707, this model by 1;"):
        weights.load(f"ckpt:{tmp_path}", plain)


def test_a_run_and_its_plan_have_the_factors() -> None:
    cfg = vit_mu_digits.get_config()
    cfg.model = dataclasses.replace(cfg.model, mup_base_dim=16)
    report, _ = dry_run(cfg)
    cells = {line.split()[0]: line.split()[-1] for line in report.splitlines() if "/kernel" in line}
    assert (cells["blocks/mlp/fc1/kernel"], cells["head/kernel"]) == ("0.5", "0.25")
    opt_state = build.build(cfg, 1000).abstract.opt_state
    assert "width" in opt_state
    cfg.model = dataclasses.replace(cfg.model, mup_base_dim=cfg.model.dim)
    assert "width" not in build.build(cfg, 1000).abstract.opt_state


@pytest.mark.parametrize("qk_norm", [False, True])
def test_an_export_to_timm_computes_what_the_run_does(qk_norm: bool) -> None:
    """timm's attention has no factor: the queries' weights have it instead."""
    model = trained(everything(pre_norm=False, image_size=(8, 8), depth=1, qk_norm=qk_norm))
    _, change = export.make(model, Format.TIMM, WeightDType.FLOAT32, name="wide")
    assert change.scale > 0.1
    assert change.largest < 1e-4 * change.scale


@pytest.mark.slow
def test_the_benchmark_trains_every_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mup, "LRS", (2.0**-8,))
    monkeypatch.setattr(mup, "BASE", 8)
    monkeypatch.setattr(mup, "get_model", functools.partial(get_model, depth=1))
    argv = ["--widths", "8", "--seeds=0", "--epochs=1", "--only=transfer"]
    mup.main([*argv, f"--out={tmp_path / 'rows.json'}", f"--pictures={tmp_path}"])
    rows = mup.read(tmp_path / "rows.json")
    assert len(rows) == 2 * 2
    assert len({row.loss for row in rows}) == 1  # at the width of the base they are one model
    assert all(0 < loss < 3 for row in rows for loss in row.loss)
    assert (tmp_path / "mup_transfer.png").is_file()
