# SPDX-License-Identifier: Apache-2.0
"""Learning-rate schedules: linear warmup, a curve, linear cooldown (arXiv 2106.04560, sec. 3.5)."""

import itertools

import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float

from vit_jax.durations import Clock
from vit_jax.errors import UserError
from vit_jax.optim.config import OptimConfig, Schedule, validate


def make_schedule(cfg: OptimConfig, clock: Clock) -> optax.Schedule:
    """Build the function from a step, or an array of steps, to its float32 learning rate.

    Steps count from 0, and update number i uses lr(i). With T steps in all, W of warmup, C of
    cooldown and p = (i - W) / (T - W - C):

        i < W     warmup_lr + (lr - warmup_lr) * i / W
        cosine    min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
        linear    min_lr + (lr - min_lr) * (1 - p)
        rsqrt     lr / sqrt(1 + (i - W) / rsqrt_timescale)
        constant  lr
        step      lr * decay_factor ** (number of milestones m with m <= i)

    p stops at 1, so cosine and linear stay at min_lr from step T - C on, as with timm's
    `cooldown_epochs`. In the cooldown, i > T - C, the distance of rsqrt, constant and step from
    min_lr is multiplied by (T - i) / C.

    Without cooldown these are the schedules of google-research/vision_transformer (min_lr is its
    `linear_end`) and big_vision; rsqrt equals big_vision's with cooldown, too, when min_lr is 0.
    timm's cosine with `warmup_prefix`, as Swin uses it, is the same curve, but Swin steps it after
    the update: Swin's update i uses lr(i - 1).

    Raises:
        UserError: settings out of range, warmup and cooldown longer than the run, or milestones
            that do not follow one another within the run.
    """
    validate(cfg)
    if clock.total_steps is None:
        raise ValueError("a schedule needs the length of the run: Clock(total_steps=...)")
    total, warmup, cooldown = clock.total_steps, clock.steps(cfg.warmup), clock.steps(cfg.cooldown)
    timescale = clock.steps(cfg.rsqrt_timescale) if cfg.schedule == Schedule.RSQRT else 1
    if warmup + cooldown > total:
        raise UserError(
            f"optim.warmup ({warmup} steps) and optim.cooldown ({cooldown} steps) are longer than "
            f"the run ({total} steps); shorten them, or write them in % of the run"
        )
    if timescale < 1:
        raise UserError("optim.rsqrt_timescale must be a duration, such as '10_000 steps'")
    milestones = _milestones(cfg, clock) if cfg.schedule == Schedule.STEP else []
    kind, peak, start, end = cfg.schedule, cfg.lr, cfg.warmup_lr, cfg.min_lr
    span = max(total - warmup - cooldown, 1)

    def schedule(step: ArrayLike) -> Float[Array, "..."]:
        step = jnp.asarray(step)
        # Subtract integers, then round to float32.
        after = jnp.maximum(step - warmup, 0).astype(jnp.float32)
        progress = jnp.minimum(after / span, 1.0)
        match kind:
            case Schedule.COSINE:
                lr = end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
            case Schedule.LINEAR:
                lr = end + (peak - end) * (1 - progress)
            case Schedule.RSQRT:
                lr = peak / jnp.sqrt(1 + after / timescale)
            case Schedule.CONSTANT:
                lr = jnp.full_like(after, peak)
            case Schedule.STEP:
                passed = sum((step >= milestone for milestone in milestones), jnp.zeros_like(after))
                lr = peak * cfg.decay_factor**passed
        if cooldown:
            left = jnp.clip((total - step).astype(jnp.float32) / cooldown, 0.0, 1.0)
            lr = end + (lr - end) * left
        if warmup:
            done = step.astype(jnp.float32) / warmup
            lr = jnp.where(step < warmup, start + (peak - start) * done, lr)
        return lr

    return schedule


def _milestones(cfg: OptimConfig, clock: Clock) -> list[int]:
    """Return the milestones in steps."""
    steps = [clock.steps(text) for text in cfg.milestones]
    ends = [0, *steps, clock.total_steps or 0]
    if not steps or any(early >= late for early, late in itertools.pairwise(ends)):
        raise UserError(
            f"optim.milestones={cfg.milestones} are the steps {steps} of {clock.total_steps}; give "
            "durations that follow one another within the run, such as ('30%', '60%', '90%')"
        )
    return steps
