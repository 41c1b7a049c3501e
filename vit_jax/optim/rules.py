# SPDX-License-Identifier: Apache-2.0
"""Which parameters are decayed, frozen or slowed down: regexes over the names of single layers.

Learning rates under maximal update parametrisation follow from the optimizer (docs/mup.md).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax import trees
from vit_jax.errors import UserError, unknown
from vit_jax.models.mup import Growth, Role, role
from vit_jax.optim import config
from vit_jax.optim.config import ADAPTIVE, MatrixScale, OptimConfig, Optimizer
from vit_jax.settings import fields

# By parameter name: one value of shape (), or, where its layers differ, one of shape (L, 1, ...).
Values = Mapping[str, np.ndarray]

# Layer 0 of the layer-wise decay: all that comes before the first block.
_EMBEDDING = re.compile(
    r"^(?:patch_embed|patch_norm|norm_pre|stem|backbone|pos_embed(?:_[a-z]+)?|[a-z]+_token)(?:/|$)"
)
_STACK = re.compile(r"(?:^|/)(\w*blocks)/(\d+)/")
_STACKS = (
    "local_blocks",
    "blocks",
    "token_blocks",
    "decoder_blocks",
)  # in the order of their depth
# Patches are merged at the start of a stage: the merging layer counts as its first block.
_STAGE = re.compile(r"^stage(\d+)/(?:block(?:s/)?(\d+)/)?")

# The power of the width's growth m that multiplies the learning rate; 0 where there is none. These
# updates have a size that gradients do not change (arXiv:2203.03466 table 3, "Adam LR"), also
# Adafactor's as it is here, without scaling by the parameter.
_SIGN_LIKE = {Role.HIDDEN: -1.0, Role.OUTPUT: -1.0}
_POWERS: Mapping[Optimizer, Mapping[Role, float]] = {
    Optimizer.ADAMW: _SIGN_LIKE,
    Optimizer.LION: _SIGN_LIKE,
    Optimizer.ADAFACTOR: _SIGN_LIKE,
    # The spectral norm of orthogonal updates must not grow (arXiv:2310.17813, condition 1); with
    # numbers as large as AdamW's (`transforms.scale_by_matrix_size`) it grows as sqrt(m).
    Optimizer.MUON: {Role.HIDDEN: -0.5, Role.OUTPUT: -1.0},
    # Table 3, "SGD LR".
    Optimizer.SGD: {Role.INPUT: 1.0, Role.HEAD_NORM: 1.0, Role.OUTPUT: -1.0},
}


class Rules(NamedTuple):
    """What happens to each parameter: decayed and frozen (bool), lr and width (float32 factors).

    `lr` multiplies the whole step, `width` (maximal update parametrisation) all but the decay.
    `held` names the parameters that wait at the start of the run, `late` those whose rate begins
    later; none of them is wholly frozen.
    """

    decayed: Values
    frozen: Values
    lr: Values
    width: Values
    held: frozenset[str]
    late: frozenset[str]


class Row(NamedTuple):
    """One parameter's line in the table of `describe`."""

    parameter: str
    shape: str
    decay: str
    lr: str


def _by_layer(params: trees.PyTree, value_of: Callable[[str], Any], dtype: Any) -> Values:
    values = {}
    for name, leaf in trees.named_leaves(params):
        layers = np.array([value_of(layer) for layer in trees.layer_names(name, leaf)], dtype)
        same = (layers == layers[0]).all()
        shape = () if same else (-1, *[1] * (leaf.ndim - 1))
        values[name] = (layers[:1] if same else layers).reshape(shape)
    return values


def _matched(
    field: str, patterns: Sequence[str], params: trees.PyTree
) -> Callable[[str], int | None]:
    """Return a function from a layer's name to the index of the first pattern found in it.

    Raises UserError: a pattern is no regex, or the first match of no parameter.
    """
    regexes = [fields.regex(f"optim.{field}", pattern) for pattern in patterns]
    layers = [trees.layer_names(name, leaf) for name, leaf in trees.named_leaves(params)]
    names = [name for of_parameter in layers for name in of_parameter]

    def first(name: str) -> int | None:
        return next((i for i, regex in enumerate(regexes) if regex.search(name)), None)

    winners = {first(name) for name in names}
    for i, regex in enumerate(regexes):
        if i in winners:
            continue
        if any(map(regex.search, names)):
            raise UserError(
                f"optim.{field}: patterns before {patterns[i]!r} match all that it matches (the "
                "first match wins); put it before them or remove it"
            )
        what, known = f"parameter in optim.{field}:", [group[0] for group in layers]
        raise unknown(what, patterns[i], known, field=f"optim.{field}")
    return first


def _position(name: str) -> tuple[int, int] | None:
    """Return the sort key of a block's depth; None for a parameter outside of the blocks."""
    if _EMBEDDING.match(name):  # a hybrid's backbone has stages, too
        return None
    if stage := _STAGE.match(name):
        return int(stage[1]), int(stage[2] or 0)
    if stack := _STACK.search(name):
        if stack[1] not in _STACKS:
            raise UserError(
                f"optim.layer_decay has no depth for the stack {stack[1]!r}, only for "
                f"{', '.join(_STACKS)}; use optim.lr_multipliers",
                field="optim.layer_decay",
            )
        return _STACKS.index(stack[1]), int(stack[2])
    return None


def _layer_decay(factor: float, params: trees.PyTree) -> Callable[[str], float]:
    """Return a function from a layer's name to its factor, in the numbering of BEiT and MAE.

    timm numbers alike with two exceptions: its final norm belongs to the last block, here to the
    head's layer as in BEiT and MAE, and CaiT's token blocks share the numbers of the last patch
    blocks, where here every block has its own.
    """
    names = [n for name, leaf in trees.named_leaves(params) for n in trees.layer_names(name, leaf)]
    order = sorted({position for position in map(_position, names) if position is not None})
    if not order:
        raise UserError(
            "optim.layer_decay finds no blocks in this model; use optim.lr_multipliers",
            field="optim.layer_decay",
        )
    last = len(order) + 1

    def value_of(name: str) -> float:
        position = _position(name)
        if position is not None:
            return factor ** (last - 1 - order.index(position))
        return factor**last if _EMBEDDING.match(name) else 1.0

    return value_of


def _width_factor(cfg: OptimConfig, growth: Growth | None, name: str) -> float:
    """Return what the width's growth multiplies a parameter's update, but not its decay, by."""
    if growth is None:
        return 1.0
    m = growth.head_dim if role(name) is Role.HEAD_NORM else growth.dim
    return m ** _POWERS[cfg.name].get(role(name), 0.0)


def check_width(cfg: OptimConfig) -> None:
    """Raise UserError for settings that do not carry over from one width to another."""
    what = ""
    if cfg.name not in _POWERS:
        # LAMB's steps are as large as their parameters, but Adam's for a head that starts at zero.
        what = f"{cfg.name}; choose optim.name from {', '.join(_POWERS)}"
    elif cfg.name == Optimizer.SGD and cfg.clip_norm:
        # The head's gradient, and with it the global norm, grows as sqrt(m).
        what = "sgd with clipping by the global norm, which grows; set optim.clip_norm=0"
    elif cfg.coupled_decay:
        # The width's factors would scale it; lr times weight decay must not depend on the width.
        what = "sgd with coupled decay; set optim.coupled_decay=False and a weight decay of its own"
    elif cfg.muon_scale == MatrixScale.JORDAN:
        # The rule above is for numbers as large as AdamW's.
        what = "muon's own scale; set optim.muon_scale=adamw"
    elif cfg.sam_rho:
        # All parameters share one length of climb (arXiv:2411.00075 gives each layer its own).
        what = "sharpness-aware minimisation; set optim.sam_rho=0"
    if what:
        raise UserError(f"model.mup_base_dim has no rule for {what}", field="model.mup_base_dim")


def make_rules(cfg: OptimConfig, params: trees.PyTree, growth: Growth | None = None) -> Rules:
    """Apply the config's regexes to the parameters (arrays or ShapeDtypeStructs).

    `growth` is as in `make_optimizer`.

    Raises UserError: a pattern is no regex or matches nothing, nothing is left to train, hold names
    a part of a stack, or layer_decay is set for a model whose order of blocks is unknown.
    """
    # LAMB and LARS adapt the decayed parameters whatever the strength of the decay.
    decays = cfg.decay and (config.decays(cfg) or cfg.name in ADAPTIVE)
    decays = _matched("decay", (cfg.decay,) if decays else (), params)
    freezes = _matched("freeze", (cfg.freeze,) if cfg.freeze else (), params)
    frozen = _by_layer(params, lambda name: freezes(name) is not None, bool)
    if all(value.all() for value in frozen.values()):
        raise UserError(f"optim.freeze={cfg.freeze!r} leaves no parameter to train")

    multiplier = _matched("lr_multipliers", [p for p, _ in cfg.lr_multipliers], params)
    layer_factor = _layer_decay(cfg.layer_decay, params) if cfg.layer_decay != 1 else None

    def is_decayed(name: str) -> bool:
        return decays(name) is not None and freezes(name) is None

    def lr_of(name: str) -> float:
        index = multiplier(name)
        factor = 1.0 if index is None else cfg.lr_multipliers[index][1]
        return factor * (layer_factor(name) if layer_factor else 1.0)

    return Rules(
        decayed=_by_layer(params, is_decayed, bool),
        frozen=frozen,
        lr=_by_layer(params, lr_of, np.float32),
        width=_by_layer(params, lambda name: _width_factor(cfg, growth, name), np.float32),
        held=_held(cfg, params, frozen),
        late=_whole(cfg, "late", params, frozen)[0],
    )


def _whole(
    cfg: OptimConfig, field: str, params: trees.PyTree, frozen: Values
) -> tuple[frozenset[str], set[str]]:
    """Return the parameters, whole ones, that a field names, and all that are trained."""
    pattern: str = getattr(cfg, field)
    matches = _matched(field, (pattern,) if pattern else (), params)
    found = _by_layer(params, lambda name: matches(name) is not None, bool)
    what = f"optim.{field}={pattern!r}"
    for name, value in found.items():
        if value.size > 1:
            raise UserError(f"{what} names some layers of {name}; name all of a stack, or none")
    trained = {name for name, value in frozen.items() if not value.all()}
    chosen = frozenset(name for name in trained if found[name])
    if pattern and not chosen:
        raise UserError(f"{what} names only what optim.freeze={cfg.freeze!r} stops for good")
    return chosen, trained


def _held(cfg: OptimConfig, params: trees.PyTree, frozen: Values) -> frozenset[str]:
    held, trained = _whole(cfg, "hold", params, frozen)
    what = f"optim.hold={cfg.hold!r}"
    if held == trained:
        raise UserError(f"{what} leaves no parameter to train for {cfg.hold_for!r}")
    return held


def _share(value: np.ndarray) -> str:
    if value.all():
        return "yes"
    return f"{value.sum()} of {value.size} layers" if value.any() else "no"


def describe(cfg: OptimConfig, params: trees.PyTree, growth: Growth | None = None) -> list[Row]:
    """Tabulate what the rules do to each parameter (arrays or ShapeDtypeStructs).

    `decay` is "yes", "no" or "2 of 12 layers"; `lr` is "frozen" or the factor on the learning
    rate, the width's included, "1", "0.1" or, over the layers, "0.0687 to 0.75", with the number
    of frozen layers and how long it is held.
    """
    rules = make_rules(cfg, params, growth)
    rows = []
    for name, leaf in trees.named_leaves(params):
        frozen, factor = rules.frozen[name], rules.lr[name] * rules.width[name]
        lr = f"{factor.min():.3g}"
        lr += f" to {factor.max():.3g}" if factor.size > 1 else ""
        lr += f" ({_share(frozen)} frozen)" if frozen.any() else ""
        lr += f" (held for {cfg.hold_for})" if name in rules.held else ""
        lr += f" (from {cfg.late_start} on)" if name in rules.late else ""
        decay = _share(rules.decayed[name]) if config.decays(cfg) else "no"
        shape = "x".join(map(str, leaf.shape))
        rows.append(Row(name, shape, decay, "frozen" if frozen.all() else lr))
    return rows
