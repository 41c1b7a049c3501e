# SPDX-License-Identifier: Apache-2.0
"""Learning rates under maximal update parametrisation, by optimizer (docs/mup.md)."""

from collections.abc import Mapping

from vit_jax.errors import UserError
from vit_jax.mup import Growth, Part, part
from vit_jax.optim.config import OptimConfig, Optimizer

# The power of the width's growth m that multiplies the learning rate; 0 where there is none.
# Updates whose numbers have a size of their own (arXiv:2203.03466 table 3, "Adam LR"). So has
# Adafactor as it is here, without scaling by the parameter.
_SIGN_LIKE = {Part.HIDDEN: -1.0, Part.OUTPUT: -1.0}
_POWERS: Mapping[Optimizer, Mapping[Part, float]] = {
    Optimizer.ADAMW: _SIGN_LIKE,
    Optimizer.LION: _SIGN_LIKE,
    Optimizer.ADAFACTOR: _SIGN_LIKE,
    # Orthogonal updates are to have a spectral norm that does not grow (arXiv:2310.17813, condition
    # 1); with numbers as large as AdamW's (`transforms.scale_by_matrix_size`) it is sqrt(m).
    Optimizer.MUON: {Part.HIDDEN: -0.5, Part.OUTPUT: -1.0},
    # Table 3, "SGD LR".
    Optimizer.SGD: {Part.INPUT: 1.0, Part.HEAD_NORM: 1.0, Part.OUTPUT: -1.0},
}


def factor(cfg: OptimConfig, growth: Growth, name: str) -> float:
    """Return what multiplies a parameter's update, but not its decay, for the width's sake."""
    kind = part(name)
    m = growth.head_dim if kind is Part.HEAD_NORM else growth.dim
    return m ** _POWERS[cfg.name].get(kind, 0.0)


def check_width(cfg: OptimConfig) -> None:
    """Refuse settings that do not carry over from one width to another.

    Raises:
        UserError: naming the setting, and what to do.
    """
    what = ""
    if cfg.name not in _POWERS:
        # A step as large as its parameter: of a head that starts at zero it is Adam's, later not.
        what = f"{cfg.name}; choose optim.name from {', '.join(_POWERS)}"
    elif cfg.name == Optimizer.SGD and cfg.clip_norm:
        # The head's gradient, and with it the norm of all, grows as sqrt(m).
        what = "sgd with clipping by the global norm, which grows; set optim.clip_norm=0"
    elif cfg.coupled_decay:
        # The rates of a width would scale it, and lr times weight decay is to be the same at each.
        what = "sgd with coupled decay; set optim.coupled_decay=False and a weight decay of its own"
    elif cfg.sam_rho:
        # One length of climb for all parameters (arXiv:2411.00075 gives each layer its own).
        what = "sharpness-aware minimisation; set optim.sam_rho=0"
    if what:
        raise UserError(f"model.mup_base_dim has no rule for {what}")
