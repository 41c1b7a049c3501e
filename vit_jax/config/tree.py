# SPDX-License-Identifier: Apache-2.0
"""The Config of one run: each component's own dataclass, composed.

`fitted` fills in what a config leaves to the data, and `plan` gives its durations in steps. What a
run does about losses that are not finite or jump, and about waits without an end, is here too.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from vit_jax.checkpoints import CheckpointConfig
from vit_jax.data import DataConfig
from vit_jax.devices.sharding import MeshConfig
from vit_jax.errors import UserError
from vit_jax.evals import EvalConfig
from vit_jax.models import ModelConfig, ViTConfig
from vit_jax.models.layers.dense import ReduceDType
from vit_jax.models.lora import LoraConfig
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.optim import OptimConfig
from vit_jax.settings.durations import Clock
from vit_jax.settings.fields import group, value
from vit_jax.weights.config import InitConfig

WINDOW = 128  # finite losses that a spike is measured against
_AUTO = "auto"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class FaultsConfig:
    """What a run does about non-finite losses, loss spikes and hangs.

    Attributes:
        max_nonfinite: end the run after this many steps in a row whose loss or gradient was not
            finite; each of them changes nothing but counters.
        spike_sigmas: a loss this many standard deviations above the mean of the last 128 finite
            ones is a spike: it is logged with its examples; 0 does not look.
        skip_spikes: such a step changes nothing but counters either.
        hang_seconds: end the process where no step, batch of an evaluation or save is finished for
            this long, the first step's compilation left out; 0 waits for ever.
    """

    max_nonfinite: int = value(20, least=1, unit="steps", free=True)
    spike_sigmas: float = value(6.0, least=0, note="0 turns it off", unit="standard deviations")
    skip_spikes: bool = False
    hang_seconds: float = value(1800.0, least=0, note="0 turns it off", unit="seconds", free=True)

    def check(self) -> None:
        """Refuse to skip spikes where nothing looks for them."""
        if self.skip_spikes and not self.spike_sigmas:
            raise UserError(
                "faults.skip_spikes=True skips nothing with spike_sigmas=0; set it to 6"
            )


def is_spike(loss: Any, losses: Any, sigmas: float) -> Any:
    """Return whether a finite loss is `sigmas` standard deviations above `losses` [WINDOW].

    Works on numpy and traced arrays; False when the variance overflows.
    """
    return loss > losses.mean() + sigmas * losses.std()


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class LogConfig:
    """What is written down while training.

    Attributes:
        every: duration between lines of metrics.
        tensorboard: write TensorBoard events besides metrics.jsonl.
        wandb_project: Weights & Biases project; "" is off.
        trackio_project: Trackio project, on this machine; "" is off.
    """

    every: str = value("50 steps", unit="duration")
    tensorboard: bool = True
    wandb_project: str = ""
    trackio_project: str = ""


@dataclasses.dataclass(kw_only=True, slots=True)
class Config:
    """One run. Override any field on the command line: `--config.optim.lr=3e-4`.

    Attributes:
        model: the network that is trained.
        data: what it is trained on.
        optim: how its parameters change.
        objective: what it learns.
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
    duration: str = value("90 epochs", unit="duration")
    evals: dict[str, EvalConfig] = group(dict, free=True)
    mesh: MeshConfig = group(MeshConfig)
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

    @property
    def is_adapted(self) -> bool:
        """Whether most weights stay as `init` has them."""
        return bool(self.lora.pattern)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A run's durations in steps; 0 means "only at the end"."""

    clock: Clock
    total_steps: int
    log_every: int
    checkpoint_every: int
    eval_every: Mapping[str, int]


def metric_periods(cfg: Config) -> dict[str, str]:
    """Return the period of every metric that the evaluations measure, such as "val/top1"."""
    return {
        f"{name}{suffix}/{key}": evaluation.every
        for name, evaluation in cfg.evals.items()
        for suffix in (("", "_ema") if cfg.ema_decay else ("",))
        for key in evaluation.metrics
    }


def fitted(cfg: Config, num_examples: int, num_classes: int) -> Config:
    """Fill in the fields that a config leaves to the data; return the same config if none is left.

    Raises UserError: with that it does not go together.
    """
    found = guessed(cfg, num_examples, num_classes)
    if found is not cfg:
        found.objective.check(found.model, found.data)
        check_micro_batches(found)
    return found


def guessed(cfg: Config, num_examples: int, num_classes: int) -> Config:
    """Return the config as `fitted` does, unchecked: for numbers that may not be the data's.

    The head has the dataset's classes. A batch is an eighth of the images, of 8 to 128, and a power
    of 2; a run lasts 30 epochs, but 1,000 to 20,000 steps: short epochs need more of them. Probes
    that ask for it are left out where there are no labels to fit them to.
    """
    model, reading, duration, found = cfg.model, cfg.data, cfg.duration, cfg.evals
    if num_classes < 2:
        found = {
            name: each for name, each in found.items() if not getattr(each, "where_labelled", False)
        }
    if (learned := cfg.objective.with_classes(num_classes)).uses_labels and not model.num_classes:
        model = dataclasses.replace(model, num_classes=num_classes)
    if not reading.batch_size:
        size = 2 ** int(math.log2(min(max(num_examples / 8, 8), 128)))
        reading = dataclasses.replace(reading, batch_size=size)
    if duration == _AUTO:
        steps = min(max(30 * num_examples // reading.batch_size, 1_000), 20_000)
        duration = f"{steps} steps"
    same = model is cfg.model and reading is cfg.data and duration == cfg.duration
    same = same and len(found) == len(cfg.evals) and learned is cfg.objective
    changed = {"model": model, "data": reading, "duration": duration, "evals": found}
    return cfg if same else dataclasses.replace(cfg, objective=learned, **changed)


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


def check_micro_batches(cfg: Config) -> None:
    """Raise UserError if the micro-batches of a step are not of one size."""
    steps, size = cfg.accum_steps, cfg.data.batch_size
    if size % steps:
        raise UserError(f"accum_steps={steps} must divide data.batch_size={size}")
