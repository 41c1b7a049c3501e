# SPDX-License-Identifier: Apache-2.0
"""The Config of one run: each component's own dataclass, composed."""

import dataclasses

from vit_jax.checkpoints import CheckpointConfig
from vit_jax.config.faults import FaultsConfig
from vit_jax.data import DataConfig
from vit_jax.devices.sharding import MeshConfig
from vit_jax.evals import EvalConfig
from vit_jax.models import ModelConfig, ViTConfig
from vit_jax.models.lora import LoraConfig
from vit_jax.models.reduction import ReduceDType
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.optim import OptimConfig
from vit_jax.settings.fields import group, value
from vit_jax.weights.config import InitConfig


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
