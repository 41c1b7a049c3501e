# SPDX-License-Identifier: Apache-2.0
"""What a run costs before it is started: parameters, FLOPs, images, tokens; by shapes alone."""

import functools
import statistics
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax import config as config_lib
from vit_jax import data, errors, models, optim, trees
from vit_jax.config.tree import Config
from vit_jax.cost.scale import CHIPS, MFU, peak_flops
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, patch_sizes
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.settings import durations
from vit_jax.train import build as build_lib

HERE = "here"


class Price(NamedTuple):
    """The costs of a run: the fields of `point.Point` with the same names.

    A branch has those of all steps that made its model, its trunk's included.
    """

    params: int
    flops: float
    examples: int
    tokens: int | None
    steps: int

    def seconds(self, device: "Device", before: int = 0) -> tuple[float, float]:
        """Estimate the least and the most seconds of the training steps, and of nothing else.

        The first steps, `before` of them, are its trunk's, if the run is a branch.
        """
        slow, fast = device.flops_per_second
        flops = self.flops * (self.steps - before) / self.steps
        return flops / (fast * device.count), flops / (slow * device.count)


class Device(NamedTuple):
    """Devices of one kind: how many share a run, and each one's FLOP/s of training, least, most."""

    name: str
    count: int
    flops_per_second: tuple[float, float]


def price(cfg: Config) -> Price:
    """Count what a run costs.

    Raises UserError: a duration in epochs of a dataset that is not here, or against the others.
    """
    num_examples, is_exact = _num_examples(cfg)
    plan = config_lib.plan(cfg, num_examples)
    image = _of_image(cfg.model, cfg.objective, uphill=cfg.optim.sam_rho > 0)
    if is_exact:  # a warmup longer than the run is found here, not by its worker
        optim.make_optimizer(cfg.optim, image.params, plan.clock)
    count = plan.total_steps * cfg.data.batch_size
    tokens = None if image.tokens is None else image.tokens * count
    params = trees.num_params(image.params)
    return Price(params, float(image.flops) * count, count, tokens, plan.total_steps)


def examples(model: ModelConfig, flops: float, objective: ObjectiveConfig | None = None) -> str:
    """Return the duration in which training a model takes so many FLOPs: "16384 examples".

    By default by its labels, else by the objective.
    """
    image = _of_image(model, objective or SupervisedConfig(), uphill=False)
    return f"{round(flops / image.flops)} examples"


def _num_examples(cfg: Config) -> tuple[int, bool]:
    """Return the length of the training split, and whether it is exact."""
    try:
        return _length(cfg.data), True
    except UserError as error:
        if durations.parse(cfg.duration)[1] == "epochs":
            advice = f"or write duration={cfg.duration!r} in steps or examples, which need no data"
            raise UserError(f"{error}; {advice}") from None
        return cfg.data.batch_size, False  # of a length in steps or examples, any number


@functools.lru_cache
def _length(cfg: DataConfig) -> int:
    split = cfg.name, cfg.data_dir, cfg.train_split
    return len(data.open_source(*split, cache=False, classes=cfg.classes, bands=cfg.bands))


class _OfImage(NamedTuple):
    """What a model costs: its parameters' shapes, FLOPs of training on an image, and its tokens."""

    params: Any
    flops: int
    tokens: int | None


@functools.lru_cache
def _of_image(model: ModelConfig, objective: ObjectiveConfig, *, uphill: bool) -> _OfImage:
    # Blocks in a loop count alike, and are traced in a fraction of the time.
    cfg = Config(model=models.looped(model), objective=objective, duration="1 steps")
    cfg.optim.sam_rho = 0.1 if uphill else 0.0
    parts = build_lib.build(cfg, num_examples=cfg.data.batch_size)
    variables = {"params": parts.abstract.params, **parts.abstract.model_state}
    image = jax.ShapeDtypeStruct((1, *models.input_shape(model)), jnp.float32)
    found = []
    for side in patch_sizes.draws(model):
        apply = functools.partial(parts.objective.of_patch(side).module.apply, train=False)
        tokens = jax.eval_shape(apply, variables, image).tokens
        found += [] if tokens is None else [tokens.shape[1]]
    tokens = round(statistics.fmean(found)) if found else None
    return _OfImage(parts.abstract.params, build_lib.example_flops(parts), tokens)


def find_device(name: str, count: int) -> Device:
    """Return `count` devices, so many times as fast as one, of the kind that `--device` names.

    `name` is a chip of `cost.scale.CHIPS`, "here", or the FLOP/s that training reaches, "2e12".

    Raises UserError: an unknown name.
    """
    if name == HERE or name in CHIPS:
        kind = CHIPS[name].kind if name in CHIPS else jax.devices()[0].device_kind
        peak = peak_flops(kind) or _matmul_speed()
        # By what others got of a peak.
        return Device(name if name in CHIPS else kind, count, (peak * min(MFU), peak * max(MFU)))
    try:
        rate = float(name)
    except ValueError:
        raise errors.unknown("device", name, [HERE, *CHIPS, "2e12"]) from None
    if not 0 < rate < float("inf"):
        raise UserError(f"--device={name}: FLOP/s must be above 0")
    return Device(f"{rate:.3g} FLOP/s", count, (rate, rate))


@functools.lru_cache
def _matmul_speed() -> float:
    """Measure the FLOP/s of a float32 matmul, in a third of a second."""
    size, best = 1024, float("inf")
    x = jnp.ones((size, size), jnp.float32)
    multiply = jax.jit(lambda x: x @ x)
    multiply(x).block_until_ready()
    end = time.perf_counter() + 0.3
    while (began := time.perf_counter()) < end:
        multiply(x).block_until_ready()
        best = min(best, time.perf_counter() - began)
    return 2 * size**3 / best
