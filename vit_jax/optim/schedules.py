# SPDX-License-Identifier: Apache-2.0
"""Learning rates: warmup, a curve, cooldown (arXiv 2106.04560, sec. 3.5); a cosine."""

import dataclasses
import itertools

import jax.numpy as jnp
import optax
from jaxtyping import Array, ArrayLike, Float

from vit_jax.errors import UserError, setting
from vit_jax.optim.config import CooldownShape, OptimConfig, Schedule, trunk
from vit_jax.settings.durations import Clock


def make_late(cfg: OptimConfig, clock: Clock) -> optax.Schedule:
    """Build the function from a step to the learning rate of the parameters of `cfg.late`."""
    own = dataclasses.replace(cfg, warmup=cfg.late_warmup, warmup_lr=0.0, warmup_overlap=False)
    return make_schedule(own, clock, delay=clock.steps(cfg.late_start))


def make_schedule(cfg: OptimConfig, clock: Clock, *, delay: int = 0) -> optax.Schedule:
    """Build the function from a step, or an array of steps, to its float32 learning rate.

    Steps count from 0, and update number s uses the rate of

        i = E * max(floor(s / E) - lag, 0)

    with E steps in `schedule_every` (1 without it) and lag = 1 with `schedule_lag`, else 0. With T
    steps in all, W of warmup, C of cooldown and milestones m, each rounded down to a multiple of E
    (300 epochs of 1,251.14 steps are 300 pieces of 1,251), V = 0 with `warmup_overlap`, else W,
    and p = (i - V) / (T - V - C):

        i < W     warmup_lr + (lr - warmup_lr) * i / W
        cosine    min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2
        linear    min_lr + (lr - min_lr) * (1 - p)
        poly      min_lr + (lr - min_lr) * (1 - p) ** poly_power
        rsqrt     lr / sqrt(1 + (i - V) / rsqrt_timescale)
        constant  lr
        step      lr * decay_factor ** (number of milestones m with m <= i)

    p stops at 1, so cosine and linear stay at min_lr from step T - C on, as with timm's
    `cooldown_epochs`. In the cooldown, i > T - C, the distance of rsqrt, constant and step from
    min_lr is multiplied by q = (T - i) / C or, with `cooldown_shape=sqrt`, 1 - sqrt(1 - q). A
    `branch` cools down from its step on: C is T without that.

    With a `delay` of D steps the rate is 0 for these, and W begins after them.

    The defaults are the schedule of google-research/vision_transformer (min_lr is its `linear_end`)
    and, with rsqrt's cooldown when min_lr is 0, of big_vision. Swin's (timm's cosine with
    warmup_prefix, stepped after each update) is the cosine with `schedule_lag`; DeiT's (by epochs,
    without warmup_prefix) adds `schedule_every="1 epoch"` and `warmup_overlap`.

    Raises UserError: settings out of range, warmup and cooldown longer than the run, milestones
    that do not follow one another within the run, or a duration shorter than `schedule_every`.
    """
    cfg.check()
    if clock.total_steps is None:
        raise ValueError("a schedule needs the length of the run: Clock(total_steps=...)")
    every = max(clock.steps(cfg.schedule_every), 1)
    clock = dataclasses.replace(clock, total_steps=clock.total_steps // every * every)
    if not clock.total_steps:
        raise UserError(
            f"optim.schedule_every={cfg.schedule_every!r} ({every} steps) is longer than the run"
        )
    total = clock.total_steps
    warmup, cooldown = (_whole_pieces(cfg, field, clock, every) for field in ("warmup", "cooldown"))
    if cfg.branch:
        cooldown = _after_branch(cfg, warmup, total)
    timescale = clock.steps(cfg.rsqrt_timescale) if cfg.schedule == Schedule.RSQRT else 1
    if delay + warmup + cooldown > total:
        long = [name for name, steps in (("warmup", warmup), ("cooldown", cooldown)) if steps]
        advice = " ".join(setting(f"config.optim.{name}=5%") for name in long)
        raise UserError(
            f"optim.warmup ({delay + warmup} steps) and optim.cooldown ({cooldown} steps) are "
            f"longer than the run ({total} steps); shorten them, or write them in % of the run: "
            f"add {advice}",
            field="optim.warmup",
        )
    if timescale < 1:
        raise UserError(
            "optim.rsqrt_timescale must be a duration, such as '10_000 steps'",
            field="optim.rsqrt_timescale",
        )
    milestones = _milestones(cfg, clock, every) if cfg.schedule == Schedule.STEP else []
    kind, peak, start, end = cfg.schedule, cfg.lr, cfg.warmup_lr, cfg.min_lr
    begin = 0 if cfg.warmup_overlap else delay + warmup
    span = max(total - begin - cooldown, 1)

    def schedule(step: ArrayLike) -> Float[Array, "..."]:
        step = jnp.asarray(step)
        if every > 1 or cfg.schedule_lag:
            step = jnp.maximum(step // every - cfg.schedule_lag, 0) * every
        # Subtract integers, then round to float32.
        after = jnp.maximum(step - begin, 0).astype(jnp.float32)
        progress = jnp.minimum(after / span, 1.0)
        match kind:
            case Schedule.COSINE:
                lr = end + (peak - end) * 0.5 * (1 + jnp.cos(jnp.pi * progress))
            case Schedule.LINEAR:
                lr = end + (peak - end) * (1 - progress)
            case Schedule.POLY:
                lr = end + (peak - end) * (1 - progress) ** cfg.poly_power
            case Schedule.RSQRT:
                lr = peak / jnp.sqrt(1 + after / timescale)
            case Schedule.CONSTANT:
                lr = jnp.full_like(after, peak)
            case Schedule.STEP:
                passed = sum((step >= milestone for milestone in milestones), jnp.zeros_like(after))
                lr = peak * cfg.decay_factor**passed
        if cooldown:
            left = jnp.clip((total - step).astype(jnp.float32) / cooldown, 0.0, 1.0)
            if cfg.cooldown_shape == CooldownShape.SQRT:
                left = 1 - jnp.sqrt(1 - left)
            lr = end + (lr - end) * left
        if warmup:
            done = (step - delay if delay else step).astype(jnp.float32) / warmup
            lr = jnp.where(step < delay + warmup, start + (peak - start) * done, lr)
        if delay:
            lr = jnp.where(step < delay, 0.0, lr)
        return lr

    return schedule


def cosine(start: float, end: float, total_steps: int) -> optax.Schedule:
    """Build end + (start - end) * (1 + cos(pi * step / total_steps)) / 2, a float32.

    Steps count from 0; from `total_steps` on it stays at `end`. Both ends are exact. DINO's weight
    decay and its teacher's momentum go so (arXiv:2104.14294, sec. 3).
    """

    def schedule(step: ArrayLike) -> Float[Array, "..."]:
        progress = jnp.minimum(jnp.asarray(step).astype(jnp.float32) / total_steps, 1.0)
        share = 0.5 * (1 + jnp.cos(jnp.pi * progress))
        return start * share + end * (1 - share)

    return schedule


def _whole_pieces(cfg: OptimConfig, field: str, clock: Clock, every: int) -> int:
    """Return a duration in steps, rounded down to whole pieces of `every` steps."""
    text = getattr(cfg, field)
    steps = clock.steps(text)
    if 0 < steps < every:
        raise UserError(
            f"optim.{field}={text!r} ({steps} steps) is shorter than "
            f"optim.schedule_every={cfg.schedule_every!r} ({every} steps); make it a multiple"
        )
    return steps // every * every


def _after_branch(cfg: OptimConfig, warmup: int, total: int) -> int:
    """Return the steps from where a branch leaves its trunk to the end."""
    _, step = trunk(cfg)
    if warmup > step:
        raise UserError(
            f"optim.branch={cfg.branch!r} leaves the trunk in the warmup, of {warmup} steps; "
            "choose a later checkpoint",
            field="optim.branch",
        )
    if step >= total:
        longer = setting(f"config.duration={step + max(step // 5, 1)} steps")
        raise UserError(
            f"optim.branch={cfg.branch!r} is not before the end of the run, of {total} steps; set "
            f"a duration beyond it, such as {longer}",
            field="optim.branch",
        )
    return total - step


def _milestones(cfg: OptimConfig, clock: Clock, every: int) -> list[int]:
    steps = [clock.steps(text) // every * every for text in cfg.milestones]
    ends = [0, *steps, clock.total_steps or 0]
    if not steps or any(early >= late for early, late in itertools.pairwise(ends)):
        raise UserError(
            f"optim.milestones={cfg.milestones} are the steps {steps} of {clock.total_steps}; give "
            "durations that follow one another within the run, such as ('30%', '60%', '90%')"
        )
    return steps
