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
from vit_jax.cost import scale
from vit_jax.cost.flops import Work
from vit_jax.data import DataConfig
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, patch_sizes
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.settings import durations
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import image_work, repeated

HERE = "here"


class Price(NamedTuple):
    """The costs of a run.

    A branch has those of all steps that made its model, its trunk's included.

    Attributes:
        params, flops, examples, tokens, steps: as of `point.Point`.
        image: a forward pass of one image.
        weights: parameters of that pass.
        dtype: that the model computes in.
        pieces: of a batch.
        repeated: FLOPs of a step over the model's own.
    """

    params: int
    flops: float
    examples: int
    tokens: int | None
    steps: int
    image: Work
    weights: int
    dtype: str = "bfloat16"
    pieces: int = 1
    repeated: float = 1.0

    def fields(self) -> dict[str, Any]:
        """Return what a `point.Point` keeps."""
        names = ("params", "flops", "examples", "tokens", "steps")
        return {name: getattr(self, name) for name in names}

    def seconds(self, device: "Device", before: int = 0) -> tuple[float, float]:
        """Estimate the least and the most seconds of the training steps, and of nothing else.

        The first steps, `before` of them, are its trunk's, if the run is a branch.
        """
        steps, count = self.steps - before, device.count
        if device.chip is None:
            slow, fast = device.flops_per_second
            flops = self.flops * steps / self.steps
            return flops / (fast * count), flops / (slow * count)
        effort = scale.effort(
            self.image,
            self.repeated * self.flops / self.steps / count,
            images=self.examples / self.steps / count,
            weights=float(self.weights),
            updated=float(self.params),
            pieces=self.pieces,
            dtype=self.dtype,
        )
        least, most = scale.step_range(effort, device.chip)
        return least * steps, most * steps


class Device(NamedTuple):
    """Devices of one kind, of which so many share a run.

    Attributes:
        chip: what the cost model knows of it, or None.
        flops_per_second: of training on one device, least and most, where there is no chip.
    """

    name: str
    count: int
    chip: scale.Chip | None
    flops_per_second: tuple[float, float] = (0.0, 0.0)


def price(cfg: Config) -> Price:
    """Count what a run costs.

    Raises UserError: a duration in epochs of a dataset that is not here, or against the others.
    """
    cfg, num_examples, is_exact = _fitted(cfg)
    plan = config_lib.plan(cfg, num_examples)
    image = _of_image(cfg.model, cfg.objective, uphill=cfg.optim.sam_rho > 0)
    if is_exact:  # a warmup longer than the run is found here, not by its worker
        optim.make_optimizer(cfg.optim, image.params, plan.clock)
    count = plan.total_steps * cfg.data.batch_size
    tokens = None if image.tokens is None else image.tokens * count
    params = trees.num_params(image.params)
    flops = float(image.flops) * count
    found = Price(params, flops, count, tokens, plan.total_steps, image.work, image.weights)
    settings = {"dtype": cfg.model.dtype.value, "pieces": cfg.accum_steps}
    return found._replace(**settings, repeated=repeated(cfg))


def examples(model: ModelConfig, flops: float, objective: ObjectiveConfig | None = None) -> str:
    """Return the duration in which training a model takes so many FLOPs: "16384 examples".

    By default by its labels, else by the objective.
    """
    image = _of_image(model, objective or SupervisedConfig(), uphill=False)
    return f"{round(flops / image.flops)} examples"


def _fitted(cfg: Config) -> tuple[Config, int, bool]:
    """Return the config as its data fit it, their training split's length, whether it is exact."""
    try:
        num_examples, num_classes = _sizes(cfg.data)
    except UserError as error:
        if config_lib.guessed(cfg, 100, 10) is not cfg:
            what = "the config leaves its duration, batch or classes to the data"
            raise UserError(f"{error}; {what}; set them, and steps or examples") from None
        if durations.parse(cfg.duration)[1] == "epochs":
            advice = f"or write duration={cfg.duration!r} in steps or examples, which need no data"
            raise UserError(f"{error}; {advice}") from None
        return cfg, cfg.data.batch_size, False  # a length in steps or examples takes any number
    return config_lib.fitted(cfg, num_examples, num_classes), num_examples, True


@functools.lru_cache
def _sizes(cfg: DataConfig) -> tuple[int, int]:
    split = cfg.name, cfg.data_dir, cfg.train_split
    source = data.open_source(*split, cache=False, classes=cfg.classes, bands=cfg.bands)
    return len(source), source.num_classes


class _OfImage(NamedTuple):
    """What a model costs: its parameters' shapes, FLOPs of training on an image, and its tokens."""

    params: Any
    flops: int
    tokens: int | None
    work: Work
    weights: int


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
    flops = build_lib.example_flops(parts)
    return _OfImage(parts.abstract.params, flops, tokens, *image_work(parts))


def find_device(name: str, count: int) -> Device:
    """Return `count` devices, so many times as fast as one, of the kind that `--device` names.

    `name` is a chip of `cost.scale.CHIPS`, "here", or the FLOP/s that training reaches, "2e12".

    Raises UserError: an unknown name.
    """
    if name in scale.CHIPS:
        return Device(name, count, scale.CHIPS[name])
    if name == HERE:
        kind = jax.devices()[0].device_kind
        peak = scale.peak_flops(kind) or _matmul_speed()
        # Where the chip is not known, by what others got of a peak.
        speeds = peak * min(scale.MFU), peak * max(scale.MFU)
        return Device(kind, count, scale.chip(kind), speeds)
    try:
        rate = float(name)
    except ValueError:
        raise errors.unknown("device", name, [HERE, *scale.CHIPS, "2e12"]) from None
    if not 0 < rate < float("inf"):
        raise UserError(f"--device={name}: FLOP/s must be above 0")
    return Device(f"{rate:.3g} FLOP/s", count, None, (rate, rate))


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
