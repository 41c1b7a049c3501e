# SPDX-License-Identifier: Apache-2.0
"""The optax chain of a run: clip, precondition, decay, multipliers, learning rate."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax import trees
from vit_jax.errors import UserError
from vit_jax.models.mup import Growth
from vit_jax.optim import moments, transforms
from vit_jax.optim.config import OptimConfig, Optimizer, decays
from vit_jax.optim.rules import Rules, Values, make_rules
from vit_jax.optim.schedules import cosine, make_late, make_schedule
from vit_jax.settings.durations import Clock

Climb = Callable[[trees.PyTree, jax.Array], trees.PyTree]  # of gradients and the step

_LARS = 0.001  # its trust coefficient, in the paper and in facebookresearch/mae


def make_optimizer(
    cfg: OptimConfig, params: trees.PyTree, clock: Clock, growth: Growth | None = None
) -> tuple[optax.GradientTransformation, optax.Schedule]:
    """Build the transformation and its learning-rate schedule.

    The chain: zero the gradients of frozen layers, clip the rest by its global norm, apply the
    optimizer, multiply by the width's factors, add weight decay, multiply by the lr factors and
    -lr(step), zero the updates of frozen layers. LAMB adds the decay before its trust ratio, SGD
    with `coupled_decay` before its momentum; LARS has decay and trust ratio before its momentum.
    Gradients and updates of held parameters are zero, around all of it, while they wait.

    `update` needs `params`; with `sam_rho` its gradient is the one where `make_climb` goes. It
    accepts `is_valid`, a bool scalar: where that is False, only counters of the state change.

    The state's array leaves end in their parameter's name and have its shape (Adafactor's factored
    moments lack one axis); wholly frozen parameters have none.

    Args:
        cfg: settings.
        params: arrays or ShapeDtypeStructs, float32.
        clock: with the length of the run.
        growth: of the model over its base; None for the standard parametrisation.

    Raises UserError: settings out of range, without effect, or matching no parameter.
    """
    schedule = make_schedule(cfg, clock)
    rules = make_rules(cfg, params, growth)
    partly_frozen = any(value.size > 1 for value in rules.frozen.values())
    steps = _hold_steps(cfg, clock)
    decay = transforms.add_decay(_weight_decay(cfg, clock), rules.decayed)
    core, early = _core(cfg), cfg.coupled_decay or cfg.name == Optimizer.LARS
    lars = transforms.scale_by_layer_trust_ratio(rules.decayed, _LARS)
    if steps:
        from vit_jax.optim import hold  # late: most runs hold nothing

        core = hold.apart(core, rules.held)
    chain: list[tuple[Any, str, optax.GradientTransformation]] = [
        (partly_frozen, "drop", transforms.fill(rules.frozen, 0.0)),
        (cfg.clip_norm, "clip", transforms.clip_norm(cfg.clip_norm)),
        (decays(cfg) and early, "decay", decay),
        (cfg.name == Optimizer.LARS, "trust", lars),
        (True, str(cfg.name), core),
        # Before the decay: lr times weight decay must not depend on the width (docs/mup.md).
        (_changes(rules.width), "width", transforms.multiply(rules.width)),
        (decays(cfg) and not early, "decay", decay),
        (cfg.name == Optimizer.LAMB, "trust", transforms.scale_by_layer_trust_ratio(rules.decayed)),
        (_changes(rules.lr), "multiply", transforms.multiply(rules.lr)),
        (not rules.late, "lr", optax.scale_by_learning_rate(schedule)),
        (bool(rules.late), "lr", _late(cfg, clock, schedule, rules)),
        # Adding minus zero leaves every number, minus zero included, bitwise as it is.
        (partly_frozen, "hold", transforms.fill(rules.frozen, -0.0)),
    ]
    tx = optax.named_chain(*((name, step) for acts, name, step in chain if acts))
    tx = _without_frozen(tx, rules)
    tx = moments.wrapped(tx) if cfg.sam_rho else tx
    if steps:
        from vit_jax.optim import hold

        tx = hold.holding(tx, rules.held, steps)
    return tx, schedule


def _late(
    cfg: OptimConfig, clock: Clock, schedule: optax.Schedule, rules: Rules
) -> optax.GradientTransformation:
    """Multiply by minus the learning rate, that of late parameters being another."""
    if not rules.late:
        return optax.identity()
    return transforms.scale_by_rates(schedule, make_late(cfg, clock), rules.late)


def make_climb(cfg: OptimConfig, params: trees.PyTree, clock: Clock) -> Climb | None:
    """Build SAM's way uphill (arXiv:2010.01412): (gradients, step) -> what it adds to parameters.

    That is rho g/|g|, 0 for what is frozen, or held at that step. None without `sam_rho`. Takes
    what `make_optimizer` does.
    """
    if not cfg.sam_rho:
        return None
    rules, steps = make_rules(cfg, params), _hold_steps(cfg, clock)
    still = transforms.fill(rules.frozen, 0.0)

    # Differs from paper: the whole batch climbs to one point, so results do not depend on the
    # number of devices; there each device climbs by the gradient of its own examples.
    def climb(grads: trees.PyTree, step: jax.Array) -> trees.PyTree:
        if steps:
            from vit_jax.optim import hold

            grads = hold.filled(grads, rules.held, step < steps, 0.0)
        grads, _ = still.update(grads, optax.EmptyState(), grads)
        return transforms.scale_to_norm(grads, cfg.sam_rho)

    return climb


def make_constant(
    cfg: OptimConfig, params: trees.PyTree
) -> Callable[[trees.PyTree], trees.PyTree] | None:
    """Build the function that makes wholly frozen parameters constants to a loss.

    Then their gradients are zero and cost nothing, nor does the way back to what lies before the
    first trained layer. Where a part of a stack is frozen, its gradients are still computed. None
    without `freeze`.
    """
    if not cfg.freeze:
        return None
    frozen = {name for name, value in make_rules(cfg, params).frozen.items() if value.all()}

    def constant(name: str, leaf: jax.Array) -> jax.Array:
        return jax.lax.stop_gradient(leaf) if name in frozen else leaf

    return lambda params: trees.map_named(constant, params)


def _weight_decay(cfg: OptimConfig, clock: Clock) -> float | optax.Schedule:
    if not cfg.weight_decay_end:
        return cfg.weight_decay
    return cosine(cfg.weight_decay, cfg.weight_decay_end, clock.total_steps or 1)


def _hold_steps(cfg: OptimConfig, clock: Clock) -> int:
    steps, total = clock.steps(cfg.hold_for), clock.total_steps or 0
    if steps >= max(total, 1):
        raise UserError(
            f"optim.hold_for={cfg.hold_for!r} ({steps} steps) is not shorter than the run ({total} "
            "steps); optim.freeze stops updates for good"
        )
    return steps


def _changes(factors: Values) -> bool:
    return any((factor != 1).any() for factor in factors.values())


def _core(cfg: OptimConfig) -> optax.GradientTransformation:
    """Return the transformation from gradients to directions, before decay and lr."""
    mu_dtype = jnp.dtype(str(cfg.mu_dtype))
    match cfg.name:
        case Optimizer.ADAMW | Optimizer.LAMB:
            betas = cfg.beta1, cfg.beta2
            return moments.scale_by_adam(*betas, cfg.eps, mu_dtype, nesterov=cfg.adam_nesterov)
        case Optimizer.SGD | Optimizer.LARS:
            # The bfloat16 accumulator of google-research/vision_transformer's fine-tuning.
            trace = moments.momentum(cfg.momentum, cfg.nesterov, mu_dtype)
            return trace if cfg.momentum else optax.identity()
        case Optimizer.LION:
            return moments.kept(optax.scale_by_lion(cfg.beta1, cfg.beta2, mu_dtype=mu_dtype))
        case Optimizer.ADAFACTOR:
            # big_vision's form: no clipping by block, no scaling by the parameter, no debiased
            # momentum. There q, k and v are three matrices, here a layer's fused qkv kernel is one;
            # and here no axis that counts layers is factored.
            rms = transforms.scale_by_layer_factored_rms(
                decay_rate=0.8, beta2_cap=cfg.beta2, min_dim_size_to_factor=32
            )
            ema = optax.ema(cfg.momentum, debias=False, accumulator_dtype=mu_dtype)
            return moments.kept(optax.chain(rms, ema) if cfg.momentum else rms)
        case Optimizer.MUON | Optimizer.NORMUON | Optimizer.ADAMUON | Optimizer.NADAMUON:
            from vit_jax.optim import muon  # late: its mathematics are its own

            return muon.make(cfg, mu_dtype)


def _without_frozen(tx: optax.GradientTransformation, rules: Rules) -> optax.GradientTransformation:
    """Keep wholly frozen parameters, and their gradients and states, out of `tx`."""
    frozen = {name: bool(value.all()) for name, value in rules.frozen.items()}
    if not any(frozen.values()):
        return tx

    def labels(params: trees.PyTree) -> trees.PyTree:
        return trees.map_named(lambda name, _: "freeze" if frozen[name] else "train", params)

    return optax.partition({"train": tx, "freeze": transforms.fill(rules.frozen, -0.0)}, labels)
