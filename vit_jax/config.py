# SPDX-License-Identifier: Apache-2.0
"""The Config tree of one run: each component's own dataclass, composed and cross-checked here."""

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from vit_jax import data, errors, faults, models, optim, sharding
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.ranking import check_ranking
from vit_jax.data import DataConfig
from vit_jax.data.checks import check_pad
from vit_jax.durations import Clock
from vit_jax.errors import UserError
from vit_jax.evals import EVALUATORS, EvalConfig
from vit_jax.faults import FaultsConfig
from vit_jax.fields import annotations, check_effects, conform, group, value
from vit_jax.models import ModelConfig, ViTConfig, lora, patch_sizes
from vit_jax.models.layers.attention import AttentionImpl, check_target
from vit_jax.models.lora import LoraConfig
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.optim import OptimConfig
from vit_jax.reduction import ReduceDType
from vit_jax.sharding import MeshConfig
from vit_jax.weights import config as init_config
from vit_jax.weights.config import InitConfig

_AUTO = "auto"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LogConfig:
    """What is written down while training.

    Attributes:
        every: duration between lines of metrics.
        tensorboard: write TensorBoard events besides metrics.jsonl.
        wandb_project: Weights & Biases project; "" is off.
    """

    every: str = "50 steps"
    tensorboard: bool = True
    wandb_project: str = ""


@dataclasses.dataclass(kw_only=True, slots=True)
class Config:
    """One run. Override any field on the command line: `--config.optim.lr=3e-4`.

    Attributes:
        model, data, optim, objective: what is trained, on what, how, towards what.
        duration: length of training: "90 epochs", "10_000 steps" or "1e9 examples"; "auto" fits it
            to the number of images.
        evals: evaluations by name; a metric is called "<name>/top1" and so on.
        mesh: how devices share the work; results do not depend on it.
        accum_steps: micro-batches per step, for batches that do not fit in memory. BatchNorm's
            statistics are each micro-batch's own, as in PyTorch.
        reduce_dtype: of the sums of bfloat16 matmuls' gradients, over examples and over devices;
            the weights that are gathered for them are bfloat16 with either. Convolutions of more
            than one pixel sum in the dtype that they compute in.
        ema_decay: decay per step of the moving average of parameters and BatchNorm's statistics; 0
            keeps none.
        ema_decay_end: that decay at the end of the run, reached by half a cosine (DINO's teacher:
            0.996 to 1); 0 keeps `ema_decay` throughout.
        init: weights to start from, of another run or a published file.
        lora: train low-rank changes of those weights alone, and save nothing else.
        checkpoint, log: saving and logging.
        faults: what to do about non-finite losses, loss spikes and hangs.
        seed: of initial weights, data order, augmentation and dropout.
    """

    model: ModelConfig = group(ViTConfig)
    data: DataConfig = group(DataConfig)
    optim: OptimConfig = group(OptimConfig)
    objective: ObjectiveConfig = group(SupervisedConfig)
    duration: str = "90 epochs"
    evals: dict[str, EvalConfig] = group(dict, free=True)
    mesh: MeshConfig = group(MeshConfig, free=True)
    accum_steps: int = value(1, least=1)
    reduce_dtype: ReduceDType = ReduceDType.FLOAT32
    ema_decay: float = value(0.0, least=0, below=1, note="0 turns it off")
    ema_decay_end: float = value(0.0, least=0, most=1, note="0 keeps ema_decay throughout")
    init: InitConfig = group(InitConfig)
    lora: LoraConfig = group(LoraConfig)
    checkpoint: CheckpointConfig = group(CheckpointConfig, free=True)
    log: LogConfig = group(LogConfig, free=True)
    faults: FaultsConfig = group(FaultsConfig)
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run's durations in steps; 0 means "only at the end"."""

    clock: Clock
    total_steps: int
    log_every: int
    checkpoint_every: int
    eval_every: Mapping[str, int]


def check(cfg: Config) -> None:
    """Check all that needs neither data nor devices; an error is one line that names the field.

    Values in another form, "map" for Pool.MAP or 64 for (64,), are converted in place.
    """
    check_types(cfg)
    given, cfg = cfg, guessed(cfg, num_examples=10**6, num_classes=10)
    models.create(cfg.model)
    data.check(given.data)
    check_pad(cfg.data.transform, models.input_shape(cfg.model)[:2], "data.transform")
    channels = cfg.model.channels
    if channels not in (1, 3):
        raise UserError(f"model.channels={channels} must be 1 (grey) or 3 (RGB)")
    for key, each in (("mean", cfg.data.mean), ("std", cfg.data.std)):
        if len(each) not in (1, channels):
            raise UserError(f"data.{key}={each} must hold 1 or model.channels={channels} values")
    optim.validate(cfg.optim)
    if models.growth(cfg.model) is not None:
        optim.check_width(cfg.optim)
    if cfg.model.num_classes and not cfg.objective.uses_labels:
        what = f"{type(cfg.objective).__name__} trains no head"
        raise UserError(f"{what}; set model.num_classes=0, not {cfg.model.num_classes}")
    # Checks here hold for any data: the number of classes and the batch are not known yet.
    cfg.objective.check(given.model, cfg.data)
    _check_patches(cfg)
    steps = cfg.accum_steps
    if given.data.batch_size:
        _check_micro_batches(cfg)
    if steps > 1 and not cfg.objective.splits_batch:
        why = f"would cut the batch, whose examples {type(cfg.objective).__name__} compares"
        raise UserError(f"accum_steps={steps} {why}; set 1, and mesh.fsdp or model.remat=full")
    check_effects(cfg, "", [(cfg.ema_decay > 0, "without ema_decay", "ema_decay_end")])
    if cfg.objective.needs_average and not cfg.ema_decay:
        learns = f"{type(cfg.objective).__name__} learns from the moving average of its parameters"
        raise UserError(f"{learns}; set ema_decay, such as 0.996")
    init_config.validate(cfg.init)
    _check_lora(cfg)
    for name in cfg.evals:
        if not re.fullmatch(r"[a-z0-9_]+", name) or name in ("train", "perf"):
            raise UserError(f"evals.{name}: use a-z, 0-9 and _, and neither 'train' nor 'perf'")
        _check_eval(cfg.evals[name], name, cfg.objective)
    check_ranking(cfg.checkpoint, metric_periods(cfg))
    faults.validate(cfg.faults)
    # The durations are parsed without the data, so that a typo is found here.
    plan(cfg, num_examples=cfg.data.batch_size)
    sizes = [getattr(cfg.mesh, axis) for axis in sharding.BATCH_AXES]
    if given.data.batch_size:
        check_batch(cfg, math.prod(size for size in sizes if size > 0))


def _check_micro_batches(cfg: Config) -> None:
    steps, size = cfg.accum_steps, cfg.data.batch_size
    if size % steps:
        raise UserError(f"accum_steps={steps} must divide data.batch_size={size}")


def check_types(cfg: Config) -> None:
    """Convert every value to its field's annotation, in place, and check its range (`conform`)."""
    _refuse_names(cfg, "")
    conform(cfg)


def _refuse_names(node: Any, path: str) -> None:
    """Raise UserError for the name of a model in place of its config, wherever a model stands."""
    kinds = annotations(type(node))
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if kinds[field.name] is ModelConfig:
            models.refuse_name(value, f"{path}{field.name}={value!r}")
        elif dataclasses.is_dataclass(value):
            _refuse_names(value, f"{path}{field.name}.")


def _check_eval(evaluation: EvalConfig, name: str, objective: ObjectiveConfig) -> None:
    """Raise UserError for an invalid evaluation, or one of logits that no head is trained for."""
    lacks: dict[str, str] = {}
    if objective.head_loss is None:
        lacks["logits"] = "trains no head"
    if not objective.scores_images:
        lacks["loss"] = "has no loss of an image by itself"
    kinds = [each for each in EVALUATORS if each.predictor not in lacks]
    if type(evaluation) not in kinds:
        why = lacks.get(evaluation.predictor, "")
        why = f", and {type(objective).__name__} {why}" if why else ""
        valid = ", ".join(kind.__name__ for kind in kinds)
        raise UserError(f"evals.{name} is a {type(evaluation).__name__}{why}; choose {valid}")
    evaluation.check(f"evals.{name}")


def _check_patches(cfg: Config) -> None:
    """Raise UserError for sizes of patches that the model cannot take, or a draw of no use."""
    draws = patch_sizes.draws(cfg.model)
    if draws != (0,) and not isinstance(cfg.objective, SupervisedConfig):
        learns = f"{type(cfg.objective).__name__} has patches of one size"
        raise UserError(f"{learns}; set model.drawn_patches=()")
    wanted = [("model.drawn_patches", side) for side in draws]
    wanted += [(f"evals.{name}.patch", ev.patch) for name, ev in cfg.evals.items()]
    for field, side in wanted:
        try:
            models.create(patch_sizes.at(cfg.model, side))
        except UserError as error:
            raise UserError(f"{field}={side}: {error}") from None


def _check_lora(cfg: Config) -> None:
    """Raise UserError for low-rank changes of nothing, or of what has no rule for them."""
    lora.check(cfg.lora)
    lacks = {
        "frozen weights to change; set init.weights": not cfg.init.weights,
        "a rule for model.mup_base_dim; set 0": models.growth(cfg.model) is not None,
        f"classes to learn by {type(cfg.objective).__name__}": not cfg.objective.uses_labels,
    }
    why = next((what for what, is_lacking in lacks.items() if is_lacking), "")
    if cfg.lora.pattern and why:
        raise UserError(f"lora.pattern={cfg.lora.pattern!r} lacks {why}")


def metric_periods(cfg: Config) -> dict[str, str]:
    """Return the period of every metric that the evaluations measure, such as "val/top1"."""
    return {
        f"{name}{suffix}/{key}": evaluation.every
        for name, evaluation in cfg.evals.items()
        for suffix in (("", "_ema") if cfg.ema_decay else ("",))
        for key in evaluation.metrics
    }


def check_batch(cfg: Config, shards: int) -> None:
    """Raise UserError for a batch, or heads, that the mesh cannot split; `shards` of the batch."""
    size, steps = cfg.data.batch_size, cfg.accum_steps
    micro = size // steps
    if micro % shards:
        near = max(round(size / (shards * steps)), 1) * shards * steps
        fewer = max(n for n in range(1, shards) if micro % n == 0)
        raise UserError(
            f"data.batch_size={size} cannot be split over {shards} devices x accum_steps={steps}; "
            f"the nearest that can is {near}, and this one can over {fewer}"
        )
    heads = getattr(cfg.model, "num_heads", ())
    each = heads if isinstance(heads, tuple) else (heads,)  # Swin has a number for each stage
    if cfg.mesh.tensor > 1 and any(count % cfg.mesh.tensor for count in each):
        raise UserError(f"mesh.tensor={cfg.mesh.tensor} must divide model.num_heads={heads}")


def check_kernel(cfg: Config) -> None:
    """Raise UserError if the hardware lacks the kernel of `model.attention`.

    Only training checks it: elsewhere XLA's attention computes the same.
    """
    check_target(getattr(cfg.model, "attention", AttentionImpl.AUTO))


def check_classes(cfg: Config, num_classes: int) -> None:
    """Raise UserError for a head whose width is not the dataset's number of classes."""
    count, advice = cfg.model.num_classes, errors.setting(f"config.model.num_classes={num_classes}")
    if cfg.objective.uses_labels and count not in (0, num_classes):
        has = f"{cfg.data.name} has {num_classes} classes"
        raise UserError(f"model.num_classes={count}, but {has}; set {advice}")


def fitted(cfg: Config, num_examples: int, num_classes: int) -> Config:
    """Return the config with what it leaves to the data; the same one where it leaves nothing.

    Raises UserError: with that it does not go together.
    """
    found = guessed(cfg, num_examples, num_classes)
    if found is not cfg:
        found.objective.check(found.model, found.data)
        _check_micro_batches(found)
    return found


def guessed(cfg: Config, num_examples: int, num_classes: int) -> Config:
    """Return the config as `fitted` does, unchecked: for numbers that may not be the data's.

    The head has the dataset's classes. A batch is an eighth of the images, of 8 to 128, and a power
    of 2; a run lasts 30 epochs, but 1,000 to 20,000 steps: short epochs need more of them.
    """
    model, reading, duration = cfg.model, cfg.data, cfg.duration
    if cfg.objective.uses_labels and not model.num_classes:
        model = dataclasses.replace(model, num_classes=num_classes)
    if not reading.batch_size:
        size = 2 ** int(math.log2(min(max(num_examples / 8, 8), 128)))
        reading = dataclasses.replace(reading, batch_size=size)
    if duration == _AUTO:
        steps = min(max(30 * num_examples // reading.batch_size, 1_000), 20_000)
        duration = f"{steps} steps"
    same = model is cfg.model and reading is cfg.data and duration == cfg.duration
    changed = {"model": model, "data": reading, "duration": duration}
    return cfg if same else dataclasses.replace(cfg, **changed)


def plan(cfg: Config, num_examples: int) -> Plan:
    """Turn every duration of the config into steps, for a training split of `num_examples`."""
    clock = Clock(batch_size=cfg.data.batch_size, num_examples=num_examples)
    total = clock.steps(cfg.duration)
    if total < 1:
        raise UserError(f"duration={cfg.duration!r} is no training at all; try '90 epochs'")
    clock = dataclasses.replace(clock, total_steps=total)
    return Plan(
        clock=clock,
        total_steps=total,
        log_every=clock.steps(cfg.log.every),
        checkpoint_every=clock.steps(cfg.checkpoint.every),
        eval_every={name: clock.steps(e.every) for name, e in cfg.evals.items()},
    )
