# SPDX-License-Identifier: Apache-2.0
"""Laws of scaling fitted to runs, with intervals; a refusal where the runs support none."""

from vit_jax.sweeps.scaling.chinchilla import Chinchilla, Optimum, fit_chinchilla
from vit_jax.sweeps.scaling.isoflop import Budget, IsoFlop, fit_isoflop
from vit_jax.sweeps.scaling.power_law import PowerLaw, fit_power_law
from vit_jax.sweeps.scaling.runs import CannotFit, HeldOut, frontier, held_out
from vit_jax.sweeps.scaling.shape import ShapeLaw, fit_shape
