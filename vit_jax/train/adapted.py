# SPDX-License-Identifier: Apache-2.0
"""The objective of low-rank changes of frozen weights (models/lora.py)."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from vit_jax import models, trees, weights
from vit_jax.config.tree import Config
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import Source, View
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, lora
from vit_jax.models.lora import Adapter, LoraConfig
from vit_jax.objectives import Batch, Context, Extras, Objective, Predict
from vit_jax.trees import PyTree
from vit_jax.weights import adapters, heads
from vit_jax.weights.config import Base, InitConfig
from vit_jax.weights.files import digest

# The parts of what the step takes and never changes.
BASE, REST = "base", "objective"


def adapted(inner: Objective, cfg: Config) -> "LoraObjective":
    """Return the objective that trains what `cfg.lora` names of `inner`'s parameters.

    Raises UserError: it names no layers of the model that can be adapted.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    with lora.dense_layers() as dense:
        # A function of its own: what jax has traced before, it would not trace again.
        params, _ = jax.eval_shape(lambda key: inner.init(key), key)
    adapter = lora.adapt(cfg.lora, params, dense)
    own = {"inner": inner, "adapter": adapter, "lora": cfg.lora, "start": cfg.init}
    return LoraObjective(inner.cfg, inner.model, inner.data, inner.clock, **own)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraObjective(Objective):
    """An objective of which a part of the parameters, or low-rank changes of them, is trained.

    The others, its base, are read from `start.weights` and are constants to the loss, so no
    gradient of a frozen kernel is computed.

    Attributes:
        inner: the objective of all the model's parameters.
        adapter: which of them are trained.
        lora: what the config says of that.
        start: where the base is read.
    """

    inner: Objective
    adapter: Adapter
    lora: LoraConfig
    start: InitConfig

    def _at_patch(self, side: int) -> Objective:
        inner = self.inner.of_patch(side)
        return dataclasses.replace(self, inner=inner, cfg=inner.cfg, model=inner.model)

    def init(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Initialise (params, model_state) of what is trained; pure."""
        params, model_state = self.inner.init(key)
        return self.adapter.init(params, jax.random.fold_in(key, 2)), model_state

    @property
    def frozen(self) -> PyTree:
        """Shapes and dtypes of the base, and of what the inner objective never changes."""
        return {BASE: self.adapter.base, REST: self.inner.frozen}

    def whole(self, params: PyTree, frozen: PyTree) -> PyTree:
        """Return the model's parameters, of what is trained and the base."""
        return self.adapter.join(params, frozen[BASE])

    def loss(self, params: PyTree, ctx: Context, batch: Batch, rng: jax.Array) -> Any:
        """Return the inner objective's loss of the model's parameters."""
        rest: Any = ctx.replace(frozen=ctx.frozen[REST])  # pyright: ignore[reportAttributeAccessIssue]
        return self.inner.loss(self.whole(params, ctx.frozen), rest, batch, rng)

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Read what the inner objective needs, and the base."""
        extras = self.inner.open(source, seed, positions, saved)
        values, base = self._read_base(saved, source.class_names)
        return dataclasses.replace(extras, frozen={BASE: values, REST: extras.frozen}, base=base)

    def _read_base(
        self, saved: Mapping[str, Any], class_names: Sequence[str]
    ) -> tuple[PyTree, Base]:
        """Read the frozen parameters, on the host, and say where they come from.

        A run that continues reads them where it began, and they must be the same; `saved` is the
        metadata of its checkpoint, {} for a new one. `class_names` are those of the data.

        Raises UserError: they are missing, damaged or changed, or some would stay at random values,
        or as a head for other classes.
        """
        given, model = self.start, self.model
        names = [f"params/{name}" for name, _ in trees.named_leaves(self.adapter.base)]
        if not saved and class_names and heads.leaves(model).keys() & set(names):
            move = heads.move(given.weights, class_names, ema=given.ema)
            if not move.stays:
                what = f"lora.train={self.lora.train!r} freezes the head of {given.weights}"
                raise UserError(
                    f"{what}, whose classes are others, or in another order; let it match the head"
                )
        base = Base.of(saved) or Base(
            weights=adapters.resolved(given.weights),
            resize=given.resize.value,
            ema=given.ema,
            skip=given.skip,
            scale=self.adapter.scale,
        )
        values = adapters.read_base(weights.read, base, model, names, elsewhere=given.weights)
        base = base._replace(digest=base.digest or digest(values))
        return trees.nest({name.partition("/")[2]: value for name, value in values.items()}), base

    def flops(self, variables: PyTree) -> int:
        """Return the inner objective's FLOPs less what no gradient of the base takes."""
        adapter = self.adapter

        def join(trained: PyTree) -> PyTree:
            base = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), adapter.base)
            return adapter.join(trained, base)

        trained = {**variables, "params": adapter.trained}
        return self.inner.flops(variables) - saved_flops(self.model, join, trained)

    # The rest is as the inner objective has it.

    @property
    def own_parameters(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What `init` of the inner objective adds to the model's parameters."""
        return self.inner.own_parameters

    @property
    def own_heads(self) -> int:
        """The number of heads of the attention in that."""
        return self.inner.own_heads

    @property
    def views(self) -> Mapping[str, View]:
        """The images of a batch, by the name of their array."""
        return self.inner.views

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the source that go to the devices."""
        return self.inner.fields

    @property
    def rows(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shape and dtype of the arrays that `open` finds by position."""
        return self.inner.rows

    @property
    def predictors(self) -> Mapping[str, Predict]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """What evaluations ask for, of the model's parameters as `whole` returns them."""
        return self.inner.predictors

    def check_extras(self) -> None:
        """Raise UserError if what the inner objective's `open` reads is missing."""
        self.inner.check_extras()

    def describe(self) -> list[str]:
        """Describe what the run learns from besides its data."""
        return self.inner.describe()

    def init_state(self, key: jax.Array) -> PyTree:
        """Initialise the inner objective's own state."""
        return self.inner.init_state(key)

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Turn a loaded batch into what the loss takes."""
        return self.inner.prepare(batch, rng)

    def alarm(self, metrics: Mapping[str, float]) -> str:
        """Return what has gone wrong by the metrics."""
        return self.inner.alarm(metrics)


def saved_flops(model: ModelConfig, join: Callable[[PyTree], PyTree], variables: PyTree) -> int:
    """Return the FLOPs on an example that training everything would take, and this run does not.

    They are counted in the program of the gradient, of the encoder alone.

    Args:
        model: the encoder's.
        join: what is trained -> the parameters, those not trained as constants.
        variables: shapes of {"params": what is trained, **model_state}.
    """
    module = models.create(models.looped(model))
    image = jax.ShapeDtypeStruct((1, *models.input_shape(model)), jnp.float32)
    hidden = models.hidden_in_training(model)

    def forward(trained: PyTree, state: PyTree, image: Any, hidden: Any) -> Any:
        out: Any = module.apply({"params": join(trained), **state}, image, train=False, **hidden)
        return (out.features if out.logits is None else out.logits).sum()

    state = {name: tree for name, tree in variables.items() if name != "params"}
    args = variables["params"], state, image, hidden
    return train_flops(count(forward, *args)) - count(jax.value_and_grad(forward), *args)
