# SPDX-License-Identifier: Apache-2.0
"""The optax chain of a run: clip, precondition, decay, multipliers, learning rate."""

import re
from typing import Any

import jax.numpy as jnp
import optax

from vit_jax import trees
from vit_jax.durations import Clock
from vit_jax.mup import Growth
from vit_jax.optim import moments, transforms
from vit_jax.optim.config import OptimConfig, Optimizer
from vit_jax.optim.rules import Rules, make_rules
from vit_jax.optim.schedules import make_schedule

# Muon is for hidden matrices; what meets the input, the output or a token stays with Adam
# (Keller Jordan, "Muon: An optimizer for hidden layers in neural networks").
_NOT_HIDDEN = re.compile(r"(?:^|/)(?:patch_embed|pos_embed|[a-z]+_token|head[a-z_]*)(?:/|$)")


def make_optimizer(
    cfg: OptimConfig, params: trees.PyTree, clock: Clock, growth: Growth | None = None
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Build the transformation and its learning-rate schedule.

    The chain: drop the gradients of frozen layers, clip by the global norm of the rest, apply the
    optimizer, multiply by the width's factors, add weight decay, multiply by the lr factors,
    multiply by -lr(step), restore frozen layers. LAMB adds the decay before its trust ratio, SGD
    with `coupled_decay` before its momentum.
    `update` needs `params`, and with `sam_rho` `grad_fn` as well: (params, pass) -> the gradient
    there, of which the step is made. It may be told `is_finite`, a function without arguments that
    is called after the last pass: where it gives False the state stays as it is, all but its
    counters.

    The state's array leaves end in the name of the parameter they belong to and have its shape
    (Adafactor's factored moments lack one axis); wholly frozen parameters have none.

    Args:
        cfg: settings.
        params: arrays or ShapeDtypeStructs, float32.
        clock: with the length of the run.
        growth: how much wider the model is than its base under maximal update parametrisation; None
            is the standard one.

    Raises:
        UserError: settings out of range, without effect, or matching no parameter.
    """
    schedule = make_schedule(cfg, clock)
    rules = make_rules(cfg, params, growth)
    partly_frozen = any(value.size > 1 for value in rules.frozen.values())
    steps: list[tuple[str, optax.GradientTransformation]] = []
    if partly_frozen:
        steps.append(("drop", transforms.fill(rules.frozen, 0.0)))
    if cfg.clip_norm:
        steps.append(("clip", transforms.clip_norm(cfg.clip_norm)))
    decay = ("decay", transforms.add_decay(cfg.weight_decay, rules.decayed))
    if cfg.coupled_decay:
        steps.append(decay)
    steps.append((str(cfg.name), _core(cfg)))
    # Before the decay: lr times weight decay is to be the same at every width (docs/mup.md).
    if any((factor != 1).any() for factor in rules.width.values()):
        steps.append(("width", transforms.multiply(rules.width)))
    if cfg.weight_decay and not cfg.coupled_decay:
        steps.append(decay)
    if cfg.name == Optimizer.LAMB:
        steps.append(("trust", transforms.scale_by_layer_trust_ratio(rules.decayed)))
    if any((factor != 1).any() for factor in rules.lr.values()):
        steps.append(("multiply", transforms.multiply(rules.lr)))
    steps.append(("lr", optax.scale_by_learning_rate(schedule)))
    # Minus zero is the number that leaves every other one, minus zero included, bitwise as it is.
    if partly_frozen:
        steps.append(("hold", transforms.fill(rules.frozen, -0.0)))
    tx = _without_frozen(optax.named_chain(*steps), rules)
    if cfg.sam_rho:
        # Differs from paper: the whole batch climbs to one point, so that results do not depend on
        # the number of devices; there each device climbed by its own share.
        climb = (transforms.fill(rules.frozen, 0.0), transforms.scale_to_norm(-cfg.sam_rho))
        tx = moments.sharpness_aware(tx, optax.chain(*climb))
    return tx, schedule


def _core(cfg: OptimConfig) -> optax.GradientTransformation:
    """Return the optimizer proper: from gradients to directions, before decay and lr."""
    mu_dtype = jnp.dtype(str(cfg.mu_dtype))
    match cfg.name:
        case Optimizer.ADAMW | Optimizer.LAMB:
            return _adam(cfg)
        case Optimizer.SGD:
            # The bfloat16 accumulator of google-research/vision_transformer's fine-tuning.
            trace = moments.momentum(cfg.momentum, cfg.nesterov, mu_dtype)
            return trace if cfg.momentum else optax.identity()
        case Optimizer.LION:
            return moments.kept(optax.scale_by_lion(cfg.beta1, cfg.beta2, mu_dtype=mu_dtype))
        case Optimizer.ADAFACTOR:
            # big_vision's form: no clipping by block, no scaling by the parameter, momentum that is
            # not debiased. It differs in what is one matrix: here the fused qkv kernel of a layer,
            # there q, k and v apart; and here no axis that counts layers is factored.
            rms = transforms.scale_by_layer_factored_rms(
                decay_rate=0.8, beta2_cap=cfg.beta2, min_dim_size_to_factor=32
            )
            ema = optax.ema(cfg.momentum, debias=False, accumulator_dtype=mu_dtype)
            return moments.kept(optax.chain(rms, ema) if cfg.momentum else rms)
        case Optimizer.MUON:
            muon = moments.kept(_muon(cfg))
            return optax.partition({"muon": muon, "adam": _adam(cfg)}, _muon_or_adam)


def _adam(cfg: OptimConfig) -> optax.GradientTransformation:
    mu_dtype = jnp.dtype(str(cfg.mu_dtype))
    return moments.scale_by_adam(cfg.beta1, cfg.beta2, cfg.eps, mu_dtype)


def _muon(cfg: OptimConfig) -> optax.GradientTransformation:
    """Orthogonalise each layer's matrix; a fused qkv kernel counts as one matrix."""

    def matrices(updates: trees.PyTree) -> trees.PyTree:
        # The last two axes; optax maps over those that are not named, here the depth.
        return trees.map_named(lambda name, u: optax.contrib.MuonDimensionNumbers(-2, -1), updates)

    muon = optax.contrib.scale_by_muon(
        beta=cfg.momentum,
        eps=cfg.eps,
        mu_dtype=jnp.dtype(str(cfg.mu_dtype)),
        nesterov=cfg.nesterov,
        weight_dimension_numbers=matrices,
    )
    return optax.chain(
        muon if cfg.muon_debias else moments.not_debiased(muon),
        # Updates as large as AdamW's, so that one lr and one weight decay fit both halves (Liu et
        # al. 2025, arXiv 2502.16982, sec. 2.2).
        transforms.scale_by_matrix_size(0.2),
    )


def _muon_or_adam(params: trees.PyTree) -> trees.PyTree:
    def label(name: str, leaf: Any) -> str:
        is_matrix = leaf.ndim - trees.is_stacked(name) == 2
        hidden = is_matrix and name.endswith("kernel") and not _NOT_HIDDEN.search(name)
        return "muon" if hidden else "adam"

    return trees.map_named(label, params)


def _without_frozen(tx: optax.GradientTransformation, rules: Rules) -> optax.GradientTransformation:
    """Keep wholly frozen parameters, and their gradients and states, out of `tx`."""
    frozen = {name: bool(value.all()) for name, value in rules.frozen.items()}
    if not any(frozen.values()):
        return tx
    return optax.partition(
        {"train": tx, "freeze": transforms.fill(rules.frozen, -0.0)},
        lambda params: trees.map_named(
            lambda name, _: "freeze" if frozen[name] else "train", params
        ),
    )
