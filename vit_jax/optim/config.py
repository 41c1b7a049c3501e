# SPDX-License-Identifier: Apache-2.0
"""The settings of the optimizer, and which of them act for which optimizer."""

import dataclasses
import enum
import re
from collections.abc import Iterator

from vit_jax.errors import UserError
from vit_jax.settings.fields import check_effects, conform, value


class Optimizer(enum.StrEnum):
    """The update rules, each with its source."""

    ADAMW = "adamw"  # Loshchilov and Hutter 2019, arXiv 1711.05101
    SGD = "sgd"
    LAMB = "lamb"  # You et al. 2020, arXiv 1904.00962
    LARS = "lars"  # You et al. 2017, arXiv 1708.03888, as facebookresearch/mae has it
    LION = "lion"  # Chen et al. 2023, arXiv 2302.06675
    ADAFACTOR = "adafactor"  # as in Zhai et al. 2022, arXiv 2106.04560 (big_vision)
    MUON = "muon"  # Jordan 2024 as in optax, with the scale of Liu et al. 2025, arXiv 2502.16982
    NORMUON = "normuon"  # Li et al. 2025, arXiv 2510.05491
    ADAMUON = "adamuon"  # Si et al. 2025, arXiv 2507.11005, as in timm
    NADAMUON = "nadamuon"  # the same with Nesterov's momentum everywhere, as in timm


class Schedule(enum.StrEnum):
    """The curves between warmup and cooldown."""

    COSINE = "cosine"
    LINEAR = "linear"
    RSQRT = "rsqrt"
    CONSTANT = "constant"
    STEP = "step"
    POLY = "poly"


class CooldownShape(enum.StrEnum):
    """The curves of the cooldown."""

    LINEAR = "linear"
    SQRT = "sqrt"  # 1 - sqrt(progress): Haegele et al. 2024, arXiv 2405.18392, sec. 4.1


class NewtonSchulz(enum.StrEnum):
    """The coefficients by which matrices are made orthogonal; `optim.muon` has their sources."""

    JORDAN = "jordan"
    QUINTIC = "quintic"
    POLAR_EXPRESS = "polar_express"


class MatrixScale(enum.StrEnum):
    """The size of an orthogonal (in, out) matrix's step."""

    ADAMW = "adamw"  # 0.2 sqrt(max(in, out)), as large as AdamW's: arXiv 2502.16982
    JORDAN = "jordan"  # sqrt(max(1, out / in))


class MomentDtype(enum.StrEnum):
    """Storage of the first moment."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class OptimConfig:
    """Optimizer settings.

    Durations are strings: "10_000 steps", "5 epochs", "300000 examples", "5%" of the run, "" none.
    Regexes are searched in the names of single layers, `blocks/3/attn/qkv/kernel`. Weight decay is
    decoupled and multiplied by the learning rate (as in PyTorch's AdamW; big_vision's `wd` is this
    `weight_decay` times `lr`), except for sgd with `coupled_decay` and lars, which add it to the
    gradient; lr multipliers and layer decay therefore scale it too.

    Attributes:
        name: the update rule.
        lr: peak learning rate; never scaled by the batch size.
        schedule: the curve of the learning rate between warmup and cooldown.
        warmup: length of the linear warmup from `warmup_lr` to `lr`.
        warmup_lr: learning rate of step 0.
        min_lr: where cosine and linear end, and what the cooldown goes to.
        cooldown: descent to `min_lr` at the end of the run; cosine and linear reach `min_lr` before
            it and stay there.
        cooldown_shape: the curve of that descent: linear, or sqrt, 1 - sqrt(progress), which falls
            faster at first.
        branch: begin at a checkpoint of another run, the trunk, "ckpt:DIR@STEP": with its
            parameters, optimizer state and place in the data; and cool down from that step to the
            end of this run. The trunk's rate is constant, and this run has its config but for
            `duration`, `cooldown_shape` and `min_lr`.
        rsqrt_timescale: t of rsqrt's lr / sqrt(1 + (step - warmup) / t).
        milestones: when step lowers the rate, counted from the start of the run; the default is
            BiT-HyperRule's (arXiv:1912.11370).
        decay_factor: multiplies step's rate at every milestone.
        poly_power: poly falls as (1 - progress) to this power (Mask2Former and EoMT: 0.9).
        schedule_every: hold the rate for this long, from the first step on ("1 epoch": DeiT); "" is
            one step.
        schedule_lag: use the rate of one such period before, like schedulers that are stepped
            after the update: DeiT's lags by an epoch, Swin's by a step.
        warmup_overlap: the curve starts with the run, hidden by the warmup (timm's
            warmup_prefix=False: DeiT), instead of after the warmup.
        beta1: decay of the first moment: adamw, lamb, lion, the Adam of muon and its kin.
        beta2: decay of the second moment: as beta1 (the Lion paper uses 0.99); for adafactor the
            cap on its growing decay; of normuon's and adamuon's matrices, too (published: 0.95).
        eps: added to Adam's denominator: adamw, lamb, muon (there to Newton-Schulz's norm, too).
        adam_nesterov: Nesterov's form of Adam's first moment, as timm's NAdamW: adamw, the Adam of
            muon and normuon; nadamuon's has it.
        momentum: sgd, lars, adafactor (0: none), muon and its kin (published: 0.95).
        nesterov: Nesterov's form of `momentum`: sgd, muon, normuon (published: on); nadamuon has it
            and adamuon not.
        muon_debias: with `nesterov`, correct momentum and gradient for their start at zero before
            adding them, as optax does; off is Jordan's own form, which differs in the first
            1 / (1 - momentum) steps. The updates' scale is `muon_scale`'s either way.
        muon_coefficients: by which Newton-Schulz makes matrices orthogonal: jordan, quintic (timm's
            default) or polar_express, which comes nearest to orthogonal.
        muon_steps: its iterations; a table has 1, 5 or 8, and the last one repeats.
        muon_safety: a matrix is divided by this times its norm before them; polar_express is made
            for 1.01.
        muon_scale: the size of muon's and normuon's steps: that of adamw's, or jordan's own.
            adamuon's are as large as adamw's.
        weight_decay: strength of the decay.
        weight_decay_end: the strength goes to this by a cosine over the whole run (DINO,
            arXiv:2104.14294, from 0.04 to 0.4); 0 keeps `weight_decay` throughout.
        coupled_decay: sgd adds the decay to the clipped gradient, before the momentum, as
            torch.optim.SGD does: momentum m makes it 1 / (1 - m) times as strong.
        decay: regex of the decayed parameters. The default, kernels, is Google's set, and in every
            family also that of DeiT, CaiT, ConViT, Swin and timm: tensors of more than one axis in
            PyTorch, except positions, tokens and bias tables. With pool=map timm also decays the
            query: "kernel$|map_pool/latent". pycls (RegNet) decays all: ".". lamb and lars adapt
            the step of the decayed parameters alone.
        clip_norm: largest global norm of the trained parameters' gradient; 0 turns clipping off.
        lr_multipliers: (regex, factor) pairs, the first match wins; 1 where none matches.
        layer_decay: decay ** (depth + 1 - i) multiplies the learning rate of layer i: parameters
            before the blocks (embeddings, a ResNet's stem, a hybrid's ResNet) are layer 0, block i
            is i + 1, those after them depth + 1 (BEiT, MAE). Blocks are counted through all stacks
            (ConViT's local ones first, CaiT's token ones last) and stages; 1 turns it off.
        sam_rho: take the gradient at the parameters moved this far uphill (sharpness-aware
            minimisation, arXiv:2010.01412): two passes a step; 0 turns it off.
        freeze: regex of the parameters that never change; "" none. A frozen BatchNorm still updates
            its running statistics, as in PyTorch.
        hold: regex of the parameters that wait for `hold_for` at the start of the run, as DINO's
            last layer does: neither they nor their moments change, and no decay acts. It names all
            layers of a stack or none.
        hold_for: how long `hold` acts; "" none.
        late: regex of the parameters whose rate is 0 until `late_start`, rises linearly for
            `late_warmup` and then takes the same curve from there to the end, as EoMT's encoder
            beside its heads; their moments are kept from the start. It names all layers of a stack
            or none.
        late_start: when the rate of `late` begins to rise.
        late_warmup: how long it rises; the others have `warmup`.
        mu_dtype: storage of the first moment or momentum; the second moment is float32.
    """

    name: Optimizer = Optimizer.ADAMW
    lr: float = value(1e-3, above=0)
    schedule: Schedule = Schedule.COSINE
    warmup: str = value("", unit="duration")
    warmup_lr: float = value(0.0, least=0)
    min_lr: float = value(0.0, least=0)
    cooldown: str = value("", unit="duration")
    cooldown_shape: CooldownShape = CooldownShape.LINEAR
    branch: str = ""
    rsqrt_timescale: str = value("10_000 steps", unit="duration")
    milestones: tuple[str, ...] = value(("30%", "60%", "90%"), unit="durations")
    decay_factor: float = value(0.1, above=0, below=1)
    poly_power: float = value(0.9, above=0)
    schedule_every: str = value("", unit="duration")
    schedule_lag: bool = False
    warmup_overlap: bool = False
    beta1: float = value(0.9, least=0, below=1)
    beta2: float = value(0.999, least=0, below=1)
    eps: float = value(1e-8, above=0)
    adam_nesterov: bool = False
    momentum: float = value(0.9, least=0, below=1)
    nesterov: bool = False
    muon_debias: bool = True
    muon_coefficients: NewtonSchulz = NewtonSchulz.JORDAN
    muon_steps: int = value(5, least=1)
    muon_safety: float = value(1.0, least=1)
    muon_scale: MatrixScale = MatrixScale.ADAMW
    weight_decay: float = value(0.0, least=0)
    weight_decay_end: float = value(0.0, least=0, note="0 keeps weight_decay throughout")
    coupled_decay: bool = False
    decay: str = "kernel$"
    clip_norm: float = value(1.0, least=0)
    lr_multipliers: tuple[tuple[str, float], ...] = value(
        (), above=0, note="optim.freeze stops updates"
    )
    layer_decay: float = value(1.0, above=0, most=1)
    sam_rho: float = value(0.0, least=0)
    freeze: str = ""
    hold: str = ""
    hold_for: str = value("", unit="duration")
    late: str = ""
    late_start: str = value("", unit="duration")
    late_warmup: str = value("", unit="duration")
    mu_dtype: MomentDtype = MomentDtype.FLOAT32

    def check(self) -> None:
        """Raise UserError for a value out of range, or a changed setting that others switch off."""
        conform(self, "optim.")
        if self.min_lr > self.lr:
            raise UserError(f"optim.min_lr={self.min_lr} must be at most optim.lr={self.lr}")
        check_effects(self, "optim.", _effects(self))
        if self.branch:
            trunk(self)


# Their steps are as large as the parameters that `decay` names.
ADAPTIVE = frozenset({Optimizer.LAMB, Optimizer.LARS})
_ADAM = {"beta1", "beta2", "eps", "mu_dtype"}
_ITERATED = {"momentum", "muon_coefficients", "muon_steps", "muon_safety"}
_MUON = _ADAM | _ITERATED | {"nesterov", "muon_debias", "muon_scale", "adam_nesterov"}
# Which of the settings that not every optimizer uses each one uses.
_USES = {
    Optimizer.ADAMW: _ADAM | {"adam_nesterov"},
    Optimizer.SGD: {"momentum", "nesterov", "mu_dtype", "coupled_decay"},
    Optimizer.LAMB: _ADAM,
    Optimizer.LARS: {"momentum", "mu_dtype"},
    Optimizer.LION: {"beta1", "beta2", "mu_dtype"},
    Optimizer.ADAFACTOR: {"beta2", "momentum", "mu_dtype"},
    Optimizer.MUON: _MUON,
    Optimizer.NORMUON: _MUON,
    Optimizer.ADAMUON: _ADAM | _ITERATED,
    Optimizer.NADAMUON: _ADAM | _ITERATED,
}


def decays(cfg: OptimConfig) -> bool:
    """Return whether any step of the run decays parameters."""
    return cfg.weight_decay > 0 or cfg.weight_decay_end > 0


def trunk(cfg: OptimConfig) -> tuple[str, int]:
    """Return the workdir of the run that `branch` names, and the step where it leaves that.

    Raises UserError: it is no "ckpt:DIR@STEP".
    """
    found = re.fullmatch(r"ckpt:(.+)@([0-9]+)", cfg.branch)
    if found is None or not int(found[2]):
        raise UserError(
            f"optim.branch={cfg.branch!r} names no step of a run; give ckpt:DIR@STEP, such as "
            "ckpt:runs/trunk@8000",
            field="optim.branch",
        )
    return found[1], int(found[2])


def _effects(cfg: OptimConfig) -> Iterator[tuple[bool, str, *tuple[str, ...]]]:
    """Yield whether settings have an effect beside the others, when not, and their names."""
    uses = _USES[cfg.name]
    for name in sorted(set().union(*_USES.values())):
        users = ", ".join(other for other, settings in _USES.items() if name in settings)
        yield name in uses, f"with {cfg.name} (only with {users})", name
    moves = cfg.momentum != 0 or "momentum" not in uses
    yield moves, "without momentum", "nesterov", "coupled_decay"
    # Muon's Adam still has a first moment to store.
    yield moves or "beta1" in uses, "without momentum", "mu_dtype"
    yield decays(cfg), "without weight decay", "coupled_decay"
    # Without it the correction is a mere factor, which orthogonal updates lose.
    yield cfg.nesterov, "without optim.nesterov", "muon_debias"
    yield bool(cfg.decay), "when optim.decay names no parameter", "weight_decay", "weight_decay_end"
    yield bool(cfg.hold_for), "without optim.hold_for", "hold"
    yield bool(cfg.hold), "without optim.hold", "hold_for"
    yield bool(cfg.late_start), "without optim.late_start", "late"
    yield bool(cfg.late), "without optim.late", "late_start", "late_warmup"
    scheduled = f"with the schedule {cfg.schedule}"
    yield cfg.schedule == Schedule.POLY, scheduled, "poly_power"
    yield cfg.schedule == Schedule.RSQRT, scheduled, "rsqrt_timescale"
    yield cfg.schedule == Schedule.STEP, scheduled, "milestones", "decay_factor"
    yield bool(cfg.warmup), "without a warmup", "warmup_lr", "warmup_overlap"
    # The milestones of step count from the start of the run in any case.
    yield cfg.schedule not in (Schedule.CONSTANT, Schedule.STEP), scheduled, "warmup_overlap"
    yield cfg.schedule == Schedule.CONSTANT, scheduled, "branch"
    yield not cfg.branch, "with optim.branch, which cools down from its step on", "cooldown"
    cools = bool(cfg.cooldown or cfg.branch)
    falls = cfg.schedule in (Schedule.COSINE, Schedule.LINEAR, Schedule.POLY)
    yield cools, "without optim.cooldown", "cooldown_shape"
    yield not falls, f"{scheduled}, which has ended", "cooldown_shape"
    yield falls or cools, f"with {cfg.schedule}, no cooldown", "min_lr"
    varies = cfg.schedule != Schedule.CONSTANT or bool(cfg.warmup) or cools
    still = f"with {cfg.schedule}, no warmup and no cooldown"
    yield varies, still, "schedule_every", "schedule_lag"


def also_frozen(cfg: OptimConfig, pattern: str) -> OptimConfig:
    """Return the settings with the parameters of a regex, "" for none, frozen too."""
    patterns = [each for each in (cfg.freeze, pattern) if each]
    if len(patterns) < 2:
        return dataclasses.replace(cfg, freeze="".join(patterns))
    return dataclasses.replace(cfg, freeze="|".join(f"(?:{each})" for each in patterns))
