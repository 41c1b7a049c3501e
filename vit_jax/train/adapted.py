# SPDX-License-Identifier: Apache-2.0
"""A run that trains low-rank changes of frozen weights (models/lora.py): loss, costs, base."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import models, trees, weights
from vit_jax.config.tree import Config
from vit_jax.cost.flops import count, train_flops
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, lora
from vit_jax.models.lora import Adapter
from vit_jax.objectives import Context, Objective
from vit_jax.weights import adapters, heads
from vit_jax.weights.adapters import Base
from vit_jax.weights.files import digest

PyTree = Any
Loss = Callable[[PyTree, Context, Any, jax.Array], Any]
# The parts of what the step takes and never changes.
BASE, REST = "base", "objective"


def make_adapter(cfg: Config, objective: Objective, params: PyTree) -> Adapter | None:
    """Return which of an objective's parameters, by their shapes, the run trains; None for all.

    Raises UserError: `cfg.lora` names no layers of the model that can be adapted.
    """
    if not cfg.lora.pattern:
        return None
    with lora.dense_layers() as dense:
        # A function of its own: what jax has traced before, it would not trace again.
        jax.eval_shape(lambda key: objective.init(key), jax.eval_shape(lambda: jax.random.key(0)))
    return lora.adapt(cfg.lora, params, dense)


def make_init(
    init: Callable[[jax.Array], tuple[PyTree, PyTree]], adapter: Adapter | None
) -> Callable[[jax.Array], tuple[PyTree, PyTree]]:
    """Return `Objective.init` of what is trained."""
    if adapter is None:
        return init

    def trained(key: jax.Array) -> tuple[PyTree, PyTree]:
        params, model_state = init(key)
        return adapter.init(params, jax.random.fold_in(key, 2)), model_state

    return trained


def with_base(adapter: Adapter | None, base: PyTree, frozen: PyTree) -> PyTree:
    """Put what the objective keeps frozen together with the base, if any, of the parameters."""
    return frozen if adapter is None else {BASE: base, REST: frozen}


def whole(adapter: Adapter | None, params: PyTree, frozen: PyTree) -> PyTree:
    """Return the model's parameters, of what is trained and what `with_base` returned."""
    return params if adapter is None else adapter.join(params, frozen[BASE])


def make_loss(loss: Loss, adapter: Adapter | None) -> Loss:
    """Return `Objective.loss` as a function of what is trained.

    The base is a constant to it, so no gradient of a frozen kernel is computed.
    """
    if adapter is None:
        return loss

    def adapted(params: PyTree, ctx: Any, batch: Any, rng: jax.Array) -> Any:
        joined, rest = whole(adapter, params, ctx.frozen), ctx.frozen[REST]
        return loss(joined, ctx.replace(frozen=rest), batch, rng)

    return adapted


def saved_flops(adapter: Adapter, model: ModelConfig, model_state: PyTree) -> int:
    """Return the FLOPs on an example that training everything would take, and this run does not.

    They are counted in the program of the gradient.
    """
    module = models.create(models.looped(model))
    image = jax.ShapeDtypeStruct((1, *models.input_shape(model)), jnp.float32)
    hidden = models.hidden_in_training(model)

    def forward(trained: PyTree, base: PyTree, state: PyTree, image: Any, hidden: Any) -> Any:
        variables = {"params": adapter.join(trained, base), **state}
        out: Any = module.apply(variables, image, train=False, **hidden)
        return out.logits.sum()

    args = adapter.trained, adapter.base, model_state, image, hidden
    return train_flops(count(forward, *args)) - count(jax.value_and_grad(forward), *args)


def read_base(
    cfg: Config, adapter: Adapter, saved: Mapping[str, Any], class_names: Sequence[str] = ()
) -> tuple[PyTree, Base]:
    """Read the frozen parameters, on the host, and say where they come from.

    A run that continues reads them where it began, and they must be the same; `saved` is the
    metadata of its checkpoint, {} for a new one. `class_names` are those of the data.

    Raises UserError: they are missing, damaged or changed, or some would stay at random values, or
    as a head for other classes.
    """
    given = cfg.init
    names = [f"params/{name}" for name, _ in trees.named_leaves(adapter.base)]
    if not saved and class_names and heads.leaves(cfg.model).keys() & set(names):
        move = heads.move(given.weights, class_names, ema=given.ema)
        if not move.stays:
            what = f"lora.train={cfg.lora.train!r} freezes the head of {given.weights}"
            raise UserError(
                f"{what}, whose classes are others, or in another order; let it match the head"
            )
    base = Base.of(saved) or Base(
        weights=adapters.resolved(given.weights),
        resize=given.resize.value,
        ema=given.ema,
        skip=given.skip,
        scale=adapter.scale,
    )
    values = adapters.read_base(weights.read, base, cfg.model, names, elsewhere=given.weights)
    base = base._replace(digest=base.digest or digest(values))
    return trees.nest({name.partition("/")[2]: value for name, value in values.items()}), base
