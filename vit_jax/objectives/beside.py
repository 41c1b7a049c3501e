# SPDX-License-Identifier: Apache-2.0
"""What an objective trains beside its model, as weights are read: a decoder, a text tower."""

from collections.abc import Mapping
from typing import Any

from vit_jax.objectives.base import Objective
from vit_jax.trees import PyTree
from vit_jax.weights.layout import Own


def own(objective: Objective, params: PyTree, state: PyTree = None) -> Own | None:
    """Return what an objective trains beside the model, by the shapes of all parameters.

    With the model's `state` also the statistics of what is beside it.
    """
    names = objective.own_parameters
    if not names:
        return None

    def chosen(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tree[name] for name in names if name in tree}

    kept = {kind: found for kind, tree in (state or {}).items() if (found := chosen(tree))}
    return Own(chosen(params), objective.own_heads, objective.pair, kept)
