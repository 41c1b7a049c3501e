# SPDX-License-Identifier: Apache-2.0
"""Muon and its kin: orthogonal steps for hidden matrices, Adam's for all other parameters.

Newton-Schulz's iterations make a matrix's momentum orthogonal (Jordan 2024); NorMuon (arXiv
2510.05491) and AdaMuon (arXiv 2507.11005) even out the sizes of what comes out. A kernel here is
(in, out), the transpose of the papers', and each layer of a stack is a matrix of its own.
"""

import functools
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float

from vit_jax import trees
from vit_jax.optim import moments, transforms
from vit_jax.optim.config import MatrixScale, NewtonSchulz, OptimConfig, Optimizer

# Muon is for hidden matrices; Adam updates the parameters of inputs, outputs and tokens (Keller
# Jordan, "Muon: An optimizer for hidden layers in neural networks").
_NOT_HIDDEN = re.compile(
    r"(?:^|/)(?:patch_embed|pos_embed|[a-z]+_token|"
    r"head[a-z_]*|patch_head|prototypes|decoder_pred)(?:/|$)"
)

Triple = tuple[float, float, float]  # (a, b, c) of X <- a X + (b A + c A A) X, A = X X^T

# Iterations after those of a table repeat its last one.
_TABLES: Mapping[NewtonSchulz, tuple[Triple, ...]] = {
    # Keller Jordan's; optax's default.
    NewtonSchulz.JORDAN: ((3.4445, -4.7750, 2.0315),),
    # KellerJordan/modded-nanogpt, train_gpt_medium.py; timm's default, optax's "dion".
    NewtonSchulz.QUINTIC: (
        (4.0848, -6.8946, 2.9270),
        (3.9505, -6.3029, 2.6377),
        (3.7418, -5.5913, 2.3037),
        (2.8769, -3.1427, 1.2046),
        (2.8366, -3.0525, 1.2012),
    ),
    # Amsel et al. 2025, arXiv 2505.16932: NoahAmsel/PolarExpress, made for a safety of 1.01.
    NewtonSchulz.POLAR_EXPRESS: (
        (8.237312490495555, -23.157747414558198, 16.680568411445915),
        (4.082441999064835, -2.893047735332586, 0.5252849256975648),
        (3.9263479922546582, -2.8547468034765298, 0.5318022422894988),
        (3.2982187133085143, -2.424541981026706, 0.48632008358844075),
        (2.2970369434552573, -1.63662558125903, 0.4002628455953627),
        (1.8763805351440397, -1.2347896577722228, 0.35891887501668385),
        (1.8564423485617974, -1.2132449880935525, 0.3568003487825883),
        (1.8749994008682747, -1.2499988017229169, 0.3749994008546422),
    ),
}

_RMS = 0.2  # of AdamW's updates (Liu et al. 2025, arXiv 2502.16982, sec. 2.2)
_TINY = 1e-10  # zichongli5/NorMuon, normuon.py


class EvenedState(NamedTuple):
    """Second moments of orthogonal matrices: of each element, or (`v_row`) of each output."""

    v: Any
    v_row: Any


def make(cfg: OptimConfig, mu_dtype: Any) -> optax.GradientTransformation:
    """Build the update rule: of hidden matrices, with Adam for the other parameters."""
    both = cfg.name == Optimizer.NADAMUON
    muon = moments.kept(_of_matrices(cfg, mu_dtype, nesterov=both or cfg.nesterov))
    nesterov = both or cfg.adam_nesterov
    adam = moments.scale_by_adam(cfg.beta1, cfg.beta2, cfg.eps, mu_dtype, nesterov=nesterov)
    return optax.partition({"muon": muon, "adam": adam}, _labels)


def coefficients(cfg: OptimConfig) -> Float[np.ndarray, "steps 3"]:
    """Return (a, b, c) of each iteration of a config.

    The first ones divide the matrix by `muon_safety` too: a polynomial of X / s is one of X.
    """
    table = _TABLES[cfg.muon_coefficients]
    steps = cfg.muon_steps
    found = np.array([*table, *[table[-1]] * max(steps - len(table), 0)][:steps])
    found[0] /= cfg.muon_safety ** np.array([1, 3, 5])
    return found.astype(np.float32)


def _of_matrices(
    cfg: OptimConfig, mu_dtype: Any, *, nesterov: bool
) -> optax.GradientTransformation:
    """Orthogonalise each layer's matrix; a fused qkv kernel counts as one matrix."""
    axes = optax.contrib.MuonDimensionNumbers(-2, -1)  # optax maps over the others, here the depth
    muon = optax.contrib.scale_by_muon(
        beta=cfg.momentum,
        eps=cfg.eps,
        mu_dtype=mu_dtype,
        nesterov=nesterov,
        weight_dimension_numbers=lambda updates: jax.tree.map(lambda _: axes, updates),
    )
    usual = OptimConfig()
    fields = ("muon_coefficients", "muon_steps", "muon_safety")
    if any(getattr(cfg, name) != getattr(usual, name) for name in fields):
        muon = _iterating(muon, coefficients(cfg))
    match cfg.name:
        case Optimizer.ADAMUON | Optimizer.NADAMUON:
            # Differs from paper: as in timm, without the sign of the momentum.
            even = _evened(cfg.beta2, of_rows=False, one=functools.partial(_elements, eps=cfg.eps))
            return optax.chain(moments.not_debiased(muon), even)
        case Optimizer.NORMUON:
            steps = [_evened(cfg.beta2, of_rows=True, one=_rows)]
        case _:
            steps = []
    # Updates as large as AdamW's, so that one lr and one weight decay fit the parameters of both.
    scale = transforms.scale_by_matrix_size(_RMS)
    if cfg.muon_scale == MatrixScale.JORDAN:
        scale = optax.stateless(lambda updates, _: jax.tree.map(_widened, updates))
    return optax.chain(muon if cfg.muon_debias else moments.not_debiased(muon), *steps, scale)


def _iterating(
    muon: optax.GradientTransformation, table: np.ndarray
) -> optax.GradientTransformation:
    """Replace the coefficients of `optax.contrib.scale_by_muon`, which it keeps in its state.

    There they stay the default's: a run's state has one structure, and its config says what acts.
    """

    def update(updates: trees.PyTree, state: Any, params: Any = None) -> tuple[trees.PyTree, Any]:
        new: Any
        updates, new = muon.update(updates, state._replace(ns_coeffs=jnp.asarray(table)), params)
        return updates, new._replace(ns_coeffs=state.ns_coeffs)

    return optax.GradientTransformation(muon.init, update)


def _evened(
    beta2: float, *, of_rows: bool, one: Callable[..., jax.Array]
) -> optax.GradientTransformation:
    """Even out matrices (..., in, out) by a moving average of their squares.

    That is kept of each element or, with `of_rows`, as the mean over the inputs: a row of the
    papers' (out, in). `one` is a matrix's new form, of itself and of that average (1, out) or
    (in, out).
    """

    def init(params: trees.PyTree) -> EvenedState:
        def zeros(p: Any) -> jax.Array:
            shape = (*p.shape[:-2], p.shape[-1]) if of_rows else p.shape
            return jnp.zeros(shape, jnp.float32)

        v = jax.tree.map(zeros, params)
        return EvenedState(None, v) if of_rows else EvenedState(v, None)

    def update(
        updates: trees.PyTree, state: Any, params: Any = None
    ) -> tuple[trees.PyTree, EvenedState]:
        def average(o: jax.Array, v: jax.Array) -> jax.Array:
            square = jnp.square(o)
            square = square.mean(-2) if of_rows else square
            return beta2 * v + (1 - beta2) * square

        def apply(o: jax.Array, v: jax.Array) -> jax.Array:
            return one(o, v[..., None, :] if of_rows else v)

        v = jax.tree.map(average, updates, state.v_row if of_rows else state.v)
        updates = jax.tree.map(apply, updates, v)
        return updates, EvenedState(None, v) if of_rows else EvenedState(v, None)

    return optax.GradientTransformation(init, update)


def _rows(o: jax.Array, v: jax.Array) -> jax.Array:
    """Divide by each output's root mean square; the matrix keeps its norm (NorMuon, alg. 1)."""
    evened = o / (jnp.sqrt(v) + _TINY)
    return evened * (_norm(o) / jnp.maximum(_norm(evened), _TINY))


def _elements(o: jax.Array, v: jax.Array, *, eps: float) -> jax.Array:
    """Divide by each element's root mean square, to a mean square of 0.2 (AdaMuon, eq. 8)."""
    evened = o / (jnp.sqrt(v) + eps)
    return evened * (_RMS * math.sqrt(math.prod(o.shape[-2:])) / (_norm(evened) + eps))


def _norm(o: jax.Array) -> jax.Array:
    """Return the norm of each matrix (..., in, out), as (..., 1, 1)."""
    return jnp.sqrt(jnp.sum(jnp.square(o), (-2, -1), keepdims=True))


def _widened(o: jax.Array) -> jax.Array:
    """Scale orthogonal (in, out) matrices as Keller Jordan does, by sqrt(max(1, out / in))."""
    return o * math.sqrt(max(1.0, o.shape[-1] / o.shape[-2]))


def _labels(params: trees.PyTree) -> trees.PyTree:
    def label(name: str, leaf: Any) -> str:
        is_matrix = leaf.ndim - trees.is_stacked(name) == 2
        hidden = is_matrix and name.endswith("kernel") and not _NOT_HIDDEN.search(name)
        return "muon" if hidden else "adam"

    return trees.map_named(label, params)
