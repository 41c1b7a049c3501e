# SPDX-License-Identifier: Apache-2.0
"""The settings of the optimizer, and which of them act for which optimizer."""

import dataclasses
import enum
from collections.abc import Iterator

from vit_jax.errors import UserError
from vit_jax.fields import check_effects, conform, value


class Optimizer(enum.StrEnum):
    """The update rules, each with its source."""

    ADAMW = "adamw"  # Loshchilov and Hutter 2019, arXiv 1711.05101
    SGD = "sgd"
    LAMB = "lamb"  # You et al. 2020, arXiv 1904.00962
    LION = "lion"  # Chen et al. 2023, arXiv 2302.06675
    ADAFACTOR = "adafactor"  # as in Zhai et al. 2022, arXiv 2106.04560 (big_vision)
    MUON = "muon"  # Jordan 2024 as in optax, with the scale of Liu et al. 2025, arXiv 2502.16982


class Schedule(enum.StrEnum):
    """The curves between warmup and cooldown."""

    COSINE = "cosine"
    LINEAR = "linear"
    RSQRT = "rsqrt"
    CONSTANT = "constant"
    STEP = "step"


class MomentDtype(enum.StrEnum):
    """How the first moment is stored."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class OptimConfig:
    """Optimizer settings.

    Durations are strings: "10_000 steps", "5 epochs", "300000 examples", "5%" of the run, "" none.
    Regexes are searched in the names of single layers, `blocks/3/attn/qkv/kernel`. Weight decay is
    decoupled and multiplied by the learning rate for every optimizer (PyTorch's AdamW; big_vision's
    `wd` is this `weight_decay` times `lr`), but for sgd with `coupled_decay`; lr multipliers and
    layer decay therefore scale it too.

    Attributes:
        lr: peak learning rate; never scaled by the batch size.
        warmup: length of the linear warmup from `warmup_lr` to `lr`.
        warmup_lr: learning rate of step 0.
        min_lr: where cosine and linear end, and what the cooldown goes to.
        cooldown: linear descent to `min_lr` at the end of the run. Cosine and linear have reached
            `min_lr` before it and stay there.
        rsqrt_timescale: t of rsqrt's lr / sqrt(1 + (step - warmup) / t).
        milestones: when step lowers the rate, counted from the start of the run; by default as
            BiT-HyperRule (arXiv:1912.11370).
        decay_factor: what step multiplies the rate with at every milestone.
        schedule_every: hold the rate for this long, from the first step on ("1 epoch": DeiT); "" is
            a step.
        schedule_lag: use the rate of one such piece before, as schedulers do that are stepped after
            the update: DeiT's by an epoch, Swin's by a step.
        warmup_overlap: the curve starts with the run and the warmup hides its beginning (timm's
            warmup_prefix=False: DeiT), instead of after the warmup.
        beta1: decay of the first moment: adamw, lamb, lion, and muon's Adam part.
        beta2: decay of the second moment: as beta1 (the Lion paper uses 0.99); for adafactor the
            cap on its growing decay.
        eps: added to Adam's denominator: adamw, lamb, muon (there to Newton-Schulz's norm, too).
        momentum: sgd, adafactor (0: none), and muon's orthogonalised part (published: 0.95).
        nesterov: Nesterov's form of `momentum`: sgd, muon (published: on).
        muon_debias: with `nesterov`, correct momentum and gradient for their start at zero before
            they are added, as optax does; off is Jordan's own form. The two differ in the first
            1 / (1 - momentum) steps. The updates' scale is Liu et al.'s either way.
        weight_decay: strength of the decay.
        coupled_decay: sgd adds the decay to the gradient, after clipping and before the momentum,
            as torch.optim.SGD does: with momentum m it comes to 1 / (1 - m) times as much.
        decay: regex of the decayed parameters. The default is Google's set, the kernels, and in
            every family also that of DeiT, CaiT, ConViT, Swin and timm: what has more than one axis
            in PyTorch, but for positions, tokens and bias tables. With pool=map timm decays the
            query, too: "kernel$|map_pool/latent". pycls (RegNet) decays all: ".". lamb adapts the
            step of these alone.
        clip_norm: largest global norm of the trained parameters' gradient; 0 turns clipping off.
        lr_multipliers: (regex, factor) pairs, the first match wins; 1 where none matches.
        layer_decay: decay ** (depth + 1 - i) multiplies the learning rate of layer i: all before
            the blocks (embeddings, a ResNet's stem, a hybrid's ResNet) is layer 0, block i is
            i + 1, all after them depth + 1 (BEiT, MAE). Blocks are counted through all stacks
            (ConViT's local ones first, CaiT's token ones last) and stages; 1 turns it off.
        sam_rho: take the gradient at the parameters moved this far uphill (sharpness-aware
            minimisation, arXiv:2010.01412): two passes a step; 0 turns it off.
        freeze: regex of the parameters that never change; "" none. The running statistics of a
            frozen BatchNorm go on, as in PyTorch.
        mu_dtype: storage of the first moment or momentum; the second moment is float32.
    """

    name: Optimizer = Optimizer.ADAMW
    lr: float = value(1e-3, above=0)
    schedule: Schedule = Schedule.COSINE
    warmup: str = ""
    warmup_lr: float = value(0.0, least=0)
    min_lr: float = value(0.0, least=0)
    cooldown: str = ""
    rsqrt_timescale: str = "10_000 steps"
    milestones: tuple[str, ...] = ("30%", "60%", "90%")
    decay_factor: float = value(0.1, above=0, below=1)
    schedule_every: str = ""
    schedule_lag: bool = False
    warmup_overlap: bool = False
    beta1: float = value(0.9, least=0, below=1)
    beta2: float = value(0.999, least=0, below=1)
    eps: float = value(1e-8, above=0)
    momentum: float = value(0.9, least=0, below=1)
    nesterov: bool = False
    muon_debias: bool = True
    weight_decay: float = value(0.0, least=0)
    coupled_decay: bool = False
    decay: str = "kernel$"
    clip_norm: float = value(1.0, least=0)
    lr_multipliers: tuple[tuple[str, float], ...] = value(
        (), above=0, note="optim.freeze stops updates"
    )
    layer_decay: float = value(1.0, above=0, most=1)
    sam_rho: float = value(0.0, least=0)
    freeze: str = ""
    mu_dtype: MomentDtype = MomentDtype.FLOAT32


_ADAM = frozenset({"beta1", "beta2", "eps", "mu_dtype"})
# The settings that some optimizers have no use for, and those that do.
_USES = {
    Optimizer.ADAMW: _ADAM,
    Optimizer.SGD: frozenset({"momentum", "nesterov", "mu_dtype", "coupled_decay"}),
    Optimizer.LAMB: _ADAM,
    Optimizer.LION: frozenset({"beta1", "beta2", "mu_dtype"}),
    Optimizer.ADAFACTOR: frozenset({"beta2", "momentum", "mu_dtype"}),
    Optimizer.MUON: _ADAM | {"momentum", "nesterov", "muon_debias"},
}


def validate(cfg: OptimConfig) -> None:
    """Refuse a value out of range, and a changed setting that cannot act as the others stand."""
    conform(cfg, "optim.")
    if cfg.min_lr > cfg.lr:
        raise UserError(f"optim.min_lr={cfg.min_lr} must be at most optim.lr={cfg.lr}")
    check_effects(cfg, "optim.", _effects(cfg))


def _effects(cfg: OptimConfig) -> Iterator[tuple[bool, str, *tuple[str, ...]]]:
    """Yield whether settings act as the others stand, when they do not, and their names."""
    uses = _USES[cfg.name]
    for name in sorted(frozenset().union(*_USES.values())):
        takers = ", ".join(other for other, settings in _USES.items() if name in settings)
        yield name in uses, f"with {cfg.name} (only with {takers})", name
    moves = cfg.momentum != 0 or "momentum" not in uses
    yield moves, "without momentum", "nesterov", "coupled_decay"
    # Muon's other half, Adam, still has a first moment to store.
    yield moves or "beta1" in uses, "without momentum", "mu_dtype"
    yield cfg.weight_decay != 0, "without weight decay", "coupled_decay"
    # Otherwise the correction is a factor alone, which orthogonal updates do not have.
    yield cfg.nesterov, "without optim.nesterov", "muon_debias"
    yield bool(cfg.decay), "when optim.decay names no parameter", "weight_decay"

    scheduled = f"with the schedule {cfg.schedule}"
    yield cfg.schedule == Schedule.RSQRT, scheduled, "rsqrt_timescale"
    yield cfg.schedule == Schedule.STEP, scheduled, "milestones", "decay_factor"
    yield bool(cfg.warmup), "without a warmup", "warmup_lr", "warmup_overlap"
    # The milestones of step count from the start of the run in any case.
    yield cfg.schedule not in (Schedule.CONSTANT, Schedule.STEP), scheduled, "warmup_overlap"
    ends = cfg.schedule in (Schedule.COSINE, Schedule.LINEAR) or bool(cfg.cooldown)
    yield ends, f"with {cfg.schedule}, no cooldown", "min_lr"
    varies = cfg.schedule != Schedule.CONSTANT or bool(cfg.warmup or cfg.cooldown)
    still = f"with {cfg.schedule}, no warmup and no cooldown"
    yield varies, still, "schedule_every", "schedule_lag"
