# SPDX-License-Identifier: Apache-2.0
"""What a run says about its optimizer, and which of those settings act for which optimizer."""

import dataclasses
import enum
from typing import Any

from vit_jax.errors import UserError, unknown


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
    lr: float = 1e-3
    schedule: Schedule = Schedule.COSINE
    warmup: str = ""
    warmup_lr: float = 0.0
    min_lr: float = 0.0
    cooldown: str = ""
    rsqrt_timescale: str = "10_000 steps"
    milestones: tuple[str, ...] = ("30%", "60%", "90%")
    decay_factor: float = 0.1
    schedule_every: str = ""
    schedule_lag: bool = False
    warmup_overlap: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    momentum: float = 0.9
    nesterov: bool = False
    muon_debias: bool = True
    weight_decay: float = 0.0
    coupled_decay: bool = False
    decay: str = "kernel$"
    clip_norm: float = 1.0
    lr_multipliers: tuple[tuple[str, float], ...] = ()
    layer_decay: float = 1.0
    sam_rho: float = 0.0
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
_DEFAULTS = {field.name: field.default for field in dataclasses.fields(OptimConfig)}


def _changed(cfg: OptimConfig, field: str) -> bool:
    return getattr(cfg, field) != _DEFAULTS[field]


def _require_effect(cfg: OptimConfig, field: str, acts: bool, when: str) -> None:
    """Refuse a setting that was changed but would do nothing."""
    if _changed(cfg, field) and not acts:
        raise UserError(
            f"optim.{field}={str(getattr(cfg, field))!r} has no effect {when}; "
            f"leave it at {str(_DEFAULTS[field])!r}"
        )


def _require_range(cfg: OptimConfig, field: str, valid: bool, bounds: str) -> None:
    if not valid:
        raise UserError(f"optim.{field} must be {bounds}, not {getattr(cfg, field)}")


def validate(cfg: OptimConfig) -> None:
    """Check every setting that can be checked without a model.

    Raises:
        UserError: a value out of range, or a setting that cannot act as the others stand.
    """
    kinds = {"name": Optimizer, "schedule": Schedule, "mu_dtype": MomentDtype}
    for field, kind in kinds.items():
        # A config file may hold the plain string.
        valid = [member.value for member in kind]
        if getattr(cfg, field) not in valid:
            raise unknown(f"optim.{field}", getattr(cfg, field), valid)
    uses = _USES[cfg.name]
    for field in sorted(frozenset().union(*_USES.values())):
        takers = ", ".join(name for name, fields in _USES.items() if field in fields)
        _require_effect(cfg, field, field in uses, f"with {cfg.name} (only with {takers})")
    if cfg.momentum == 0 and "momentum" in uses:
        _require_effect(cfg, "nesterov", False, "without momentum")
        # Muon's other half, Adam, still has a first moment to store.
        _require_effect(cfg, "mu_dtype", "beta1" in uses, "without momentum")
        _require_effect(cfg, "coupled_decay", False, "without momentum")
    _require_effect(cfg, "coupled_decay", cfg.weight_decay != 0, "without weight decay")
    # Otherwise the correction is a factor alone, which orthogonal updates do not have.
    _require_effect(cfg, "muon_debias", cfg.nesterov, "without optim.nesterov")
    ends = cfg.schedule in (Schedule.COSINE, Schedule.LINEAR)
    _require_effect(cfg, "warmup_lr", bool(cfg.warmup), "without a warmup")
    _require_effect(cfg, "min_lr", ends or bool(cfg.cooldown), f"with {cfg.schedule}, no cooldown")
    rsqrt = cfg.schedule == Schedule.RSQRT
    _require_effect(cfg, "rsqrt_timescale", rsqrt, f"with the schedule {cfg.schedule}")
    for field in ("milestones", "decay_factor"):
        step = cfg.schedule == Schedule.STEP
        _require_effect(cfg, field, step, f"with the schedule {cfg.schedule}")
    varies = cfg.schedule != Schedule.CONSTANT or bool(cfg.warmup or cfg.cooldown)
    for field in ("schedule_every", "schedule_lag"):
        _require_effect(cfg, field, varies, f"with {cfg.schedule}, no warmup and no cooldown")
    # The milestones of step count from the start of the run in any case.
    hides = bool(cfg.warmup) and cfg.schedule not in (Schedule.CONSTANT, Schedule.STEP)
    when = f"with the schedule {cfg.schedule}" if cfg.warmup else "without a warmup"
    _require_effect(cfg, "warmup_overlap", hides, when)
    _require_effect(cfg, "weight_decay", bool(cfg.decay), "when optim.decay names no parameter")

    _require_range(cfg, "lr", cfg.lr > 0, "above 0")
    _require_range(cfg, "warmup_lr", cfg.warmup_lr >= 0, "0 or more")
    _require_range(cfg, "min_lr", 0 <= cfg.min_lr <= cfg.lr, f"from 0 to optim.lr ({cfg.lr})")
    _require_range(cfg, "decay_factor", 0 < cfg.decay_factor < 1, "above 0 and below 1")
    for field in ("beta1", "beta2", "momentum"):
        _require_range(cfg, field, 0 <= getattr(cfg, field) < 1, "from 0 to below 1")
    _require_range(cfg, "eps", cfg.eps > 0, "above 0")
    for field in ("weight_decay", "clip_norm", "sam_rho"):
        _require_range(cfg, field, getattr(cfg, field) >= 0, "0 or more")
    _require_range(cfg, "layer_decay", 0 < cfg.layer_decay <= 1, "above 0 and at most 1")
    _require_range(
        cfg,
        "lr_multipliers",
        all(_is_multiplier(pair) for pair in cfg.lr_multipliers),
        "pairs of a regex and a factor above 0, (('^head/', 10.0),) (optim.freeze stops updates)",
    )


def _is_multiplier(pair: Any) -> bool:
    # What comes from the command line is a tuple of anything.
    if not isinstance(pair, tuple) or len(pair) != 2:
        return False
    return isinstance(pair[0], str) and isinstance(pair[1], int | float) and pair[1] > 0
