# SPDX-License-Identifier: Apache-2.0
"""The seam for what a run learns: all that depends on it stands behind one `Objective`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from vit_jax import data, models
from vit_jax.cost.flops import count, train_flops
from vit_jax.data import GRIDS, DataConfig, Source, View, is_native, one_view, reading
from vit_jax.data.checks import check_labels
from vit_jax.data.sources.base import gives_numbers, has_unknown
from vit_jax.errors import UserError
from vit_jax.models import ModelConfig, patch_sizes
from vit_jax.models.losses import Loss
from vit_jax.settings.durations import Clock
from vit_jax.trees import PyTree
from vit_jax.weights.config import Base

if TYPE_CHECKING:
    from vit_jax.models.two_towers import TwoTowers
    from vit_jax.weights.layout import Own

Batch = dict[str, jax.Array]
# (variables, batch as it comes from the data) -> one row per example, in evaluation mode
Predict = Callable[[PyTree, Mapping[str, jax.Array]], jax.Array]


@dataclasses.dataclass(kw_only=True, slots=True, unsafe_hash=True)
class ObjectiveConfig:
    """Base of the configs of all objectives; a run has one of `objectives.OBJECTIVES`.

    Attributes:
        uses_labels: the model's head has one output for each class of the dataset. Without it the
            model has no head (`model.num_classes=0`).
        splits_batch: `accum_steps` may cut the batch. False for a loss that compares the examples
            of a batch with each other.
        needs_average: the loss reads the moving average of the parameters, and that is what other
            runs and verbs take of the run.
        scores_images: single images have a loss, for evaluations.
        embeds_texts: it puts images and texts in one space, for evaluations.
        predicts: what it says of every pixel, by the names of predictors.
        pixel_target: the `TargetKind` that it learns from; "" for none.
        gives_numbers: the head's outputs are numbers, one for each that the dataset has, and no
            classes.
        takes_unknown: of several labels an image some may be not known, and then teach nothing.
    """

    uses_labels: ClassVar[bool] = True
    splits_batch: ClassVar[bool] = True
    needs_average: ClassVar[bool] = False
    scores_images: ClassVar[bool] = True
    embeds_texts: ClassVar[bool] = False
    predicts: ClassVar[tuple[str, ...]] = ()
    pixel_target: ClassVar[str] = ""
    gives_numbers: ClassVar[bool] = False
    takes_unknown: ClassVar[bool] = False

    @property
    def locked(self) -> str:
        """The regex of parameters that stay as `init.weights` has them, besides `optim.freeze`."""
        return ""

    @property
    def head_loss(self) -> Loss | None:
        """The loss that the logits are trained with; None for an objective without logits."""
        return None

    @property
    def pixel_head(self) -> Any:
        """What stands beside the encoder where every pixel counts; None for nothing."""
        return None

    def check(self, model: ModelConfig, data: DataConfig) -> None:
        """Raise UserError, one line that names the field, for values that exclude each other."""

    def with_classes(self, num_classes: int) -> "ObjectiveConfig":
        """Return the settings for a dataset of K classes, where they leave that number to it."""
        del num_classes
        return self

    def check_source(self, source: Source, allowed: int = 0) -> None:
        """Check that the opened training split has what the objective learns.

        Raises UserError: it has not; `allowed` images may lack a label.
        """
        if not self.uses_labels:
            return
        if gives_numbers(source):
            what = f"{source.name} has numbers and no classes"
            raise UserError(f"{what}; set objective=regression", field="objective")
        how = "put them in folders of classes" if not source.num_classes else "label them"
        without = "or train without, as --config=unlabelled_folder does"
        check_labels(source, f"{how}, {without}", allowed=allowed)
        if has_unknown(source) and not self.takes_unknown:
            what = f"{source.name} has labels that are not known (?), for plain training alone"
            raise UserError(f"{what}; know them, or leave out the marked ones")
        if source.multi_label and self.head_loss is Loss.SOFTMAX:
            several = f"{source.name} has several labels per image"
            raise UserError(f"{several}; set objective.loss=sigmoid, or bce")
        if source.num_classes == 1 and self.head_loss is Loss.SOFTMAX:
            only = f"{source.name} has the one class {source.class_names[0]!r}"
            raise UserError(f"{only}, and there is nothing to tell it from; add images of another")

    def fitted(self, source: Source) -> "ObjectiveConfig":
        """Return the config with what it takes from the training split, as the spread of numbers.

        Raises UserError: there is nothing to learn.
        """
        del source
        return self

    def put_back(self, variables: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return trained variables as others use them: with a head in the units of the data."""
        return variables

    def check_start(self, weights: str) -> None:
        """Raise UserError if the objective does not go with `init.weights`, "" for none."""


@flax.struct.dataclass
class Context:
    """What a loss reads besides the parameters that are differentiated.

    Attributes:
        frozen: variables that are not trained, in the structure of `Objective.frozen`.
        model_state: state of the model that is not trained (BatchNorm's statistics).
        ema: moving average of {"params": ..., **model_state}, or None.
        objective: the objective's own state, as `Objective.init_state` makes it.
        step: int32 scalar, the number of steps done.
    """

    frozen: Any
    model_state: Any
    ema: Any
    objective: Any
    step: Any


class Aux(NamedTuple):
    """What a loss returns besides its value.

    Attributes:
        metrics: float32 scalars by name, means over the batch; with "loss" among them.
        model_state: the new one.
        objective: the objective's new state.
    """

    metrics: dict[str, jax.Array]
    model_state: Any
    objective: Any


@dataclasses.dataclass(frozen=True)
class Extras:
    """What an objective reads from outside the run before it starts.

    Attributes:
        frozen: values for `Objective.frozen`, on the host.
        digest: of their source; it is saved with each checkpoint, and a run does not continue with
            another.
        field: of the config, which names that source.
        base: where the frozen parameters of the model come from; None if it has none.
        rows: positions of the training stream [n] -> the arrays of `Objective.rows`; or None.
    """

    frozen: PyTree = dataclasses.field(default_factory=dict)
    digest: str = ""
    field: str = "objective.distill.weights"
    base: Base | None = None
    rows: Callable[[np.ndarray], Mapping[str, np.ndarray]] | None = None


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a run learns. A subclass defines `loss`; if it scores single images, it also defines
    `example_losses`.

    The defaults suit an image encoder that reads one view of each image. The encoder's parameters
    keep their names of the plain model, so that other runs and verbs find them; other trained
    parameters have names of their own.

    Attributes:
        cfg: the objective's config.
        model: the encoder's.
        data: the run's; for the normalisation and the transform of its images.
        clock: turns durations of the objective into steps; None outside a run.
    """

    # What `init` adds to the model's parameters, by the first component of their names.
    own_parameters: ClassVar[tuple[str, ...]] = ()

    cfg: Any
    model: ModelConfig
    data: DataConfig
    clock: Clock | None = None

    @functools.cached_property
    def module(self) -> Any:
        """The encoder."""
        return models.create(self.model)

    @functools.cached_property
    def _of_patch(self) -> dict[int, "Objective"]:
        return {0: self}

    def of_patch(self, side: int) -> "Objective":
        """Return the objective with a FlexiViT at patches of a side, one object for each; 0: self.

        Raises UserError: a model of one patch size.
        """
        if side not in self._of_patch:
            self._of_patch[side] = self._at_patch(side)
        return self._of_patch[side]

    def _at_patch(self, side: int) -> "Objective":
        return dataclasses.replace(self, model=patch_sizes.at(self.model, side))

    @property
    def pair(self) -> "TwoTowers | None":
        """The towers of an objective for images and texts, whose weights lie in one file."""
        return None

    @property
    def own_heads(self) -> int:
        """The number of heads of the attention in what `init` adds."""
        return 1

    @property
    def views(self) -> Mapping[str, View]:
        """The images of a batch, by the name of their array."""
        height, width, channels = models.input_shape(self.model)
        patch, rules = models.native_patch(self.model), reading(self.data)
        return one_view(self.data.transform, (height, width), channels, rules, patch=patch)

    @property
    def fields(self) -> tuple[str, ...]:
        """Fields of the source, besides its image, that go to the devices."""
        return ("label",) if self.cfg.uses_labels else ()

    @property
    def rows(self) -> Mapping[str, jax.ShapeDtypeStruct]:
        """Shape and dtype, for one example, of the arrays that `open` finds by position."""
        return {}

    @property
    def frozen(self) -> PyTree:
        """Shapes and dtypes of the variables that the loss takes and never changes."""
        return {}

    def check_extras(self) -> None:
        """Raise UserError if what `open` reads is missing, or by names and shapes does not fit."""

    def open(self, source: Source, seed: int, positions: int, saved: Mapping[str, Any]) -> Extras:
        """Read what the run needs from outside, for its first `positions` examples.

        `saved` is the metadata of the checkpoint that the run continues, {} for a new run.

        Raises UserError: it is not there or does not fit.
        """
        del source, seed, positions, saved
        return Extras()

    def describe(self) -> list[str]:
        """Describe, in a line or none, what the run learns from besides its data."""
        return []

    def init(self, key: jax.Array) -> tuple[PyTree, PyTree]:
        """Initialise (params, model_state) of everything that is trained; pure."""
        looped = models.looped(self.model)
        return models.init(models.create(looped), looped, key)

    def whole(self, params: PyTree, frozen: PyTree) -> PyTree:
        """Return the parameters that the model computes with, of those trained and of `frozen`."""
        del frozen
        return params

    def init_state(self, key: jax.Array) -> PyTree:
        """Initialise the objective's own state within the train state; pure."""
        del key
        return None

    def prepare(self, batch: Batch, rng: jax.Array) -> Batch:
        """Turn a loaded batch into what `loss` takes, over the whole global batch.

        Mixing happens here, before gradient accumulation splits the batch, so that results depend
        neither on the number of devices nor on the number of micro-batches.
        """
        del rng
        return {**batch, "image": data.normalize(batch["image"], self.data.mean, self.data.std)}

    def example_losses(self, variables: PyTree, batch: Mapping[str, jax.Array]) -> jax.Array:
        """Return the loss [B] of each example of a batch from the data, in evaluation mode.

        What it draws at random is the same in each evaluation.
        """
        raise NotImplementedError

    def loss(
        self, params: PyTree, ctx: Context, batch: Batch, rng: jax.Array
    ) -> tuple[Float[Array, ""], Aux]:
        """Return the mean loss of a prepared (micro-)batch, and what else the step keeps of it."""
        raise NotImplementedError

    def bounded(self, params: PyTree) -> PyTree:
        """Return the parameters after an update within the bounds that they have."""
        return params

    def alarm(self, metrics: Mapping[str, float]) -> str:
        """Return what has gone wrong by the metrics of `loss`, means over steps; "" for nothing.

        A run prints it as a warning beside its line of metrics.
        """
        del metrics
        return ""

    def flops(self, variables: PyTree) -> int:
        """Return the model FLOPs of training on one example: three times the forward pass's.

        Args:
            variables: shapes of {"params": ..., **model_state}, as `whole` returns parameters.
        """
        # A stack that is a loop counts the same, and is traced in the time of one block.
        module = models.create(models.looped(self.model))
        if is_native(self.data.transform):
            from vit_jax.objectives import native  # late: most runs have images of one size

            return native.flops(module, self, variables)
        apply = functools.partial(module.apply, train=False)
        image = jax.ShapeDtypeStruct((1, *models.input_shape(self.model)), jnp.float32)
        hidden = models.hidden_in_training(self.model)
        return train_flops(count(lambda v, x, y: apply(v, x, **y), variables, image, hidden))

    def passed_bytes(self, batch: int, shards: int) -> int:
        """Return what a device sends for the loss of a batch that is cut into `shards`."""
        del batch, shards
        return 0

    @functools.cached_property
    def predictors(self) -> Mapping[str, Predict]:
        """What evaluations ask for by name: "features" [B, D], "logits" [B, K], "loss" [B].

        Each is one function object, so that a program that calls it is compiled once.
        """
        logits = {} if self.cfg.head_loss is None else {"logits": self._logits}
        loss = {"loss": self.example_losses} if self.cfg.scores_images else {}
        return {"features": self._features, **loss, **logits}

    def encode(self, variables: PyTree, batch: Mapping[str, jax.Array]) -> models.Output:
        """Run the encoder on the images of a batch from the data, in evaluation mode."""
        if GRIDS in batch:
            from vit_jax.objectives import native  # late: most runs have images of one size

            image, given = native.image(batch, self.model, self.data), {GRIDS: batch[GRIDS]}
        else:
            image, given = data.normalize(batch["image"], self.data.mean, self.data.std), {}
        return cast(models.Output, self.module.apply(variables, image, train=False, **given))

    def _features(self, variables: PyTree, batch: Mapping[str, jax.Array]) -> jax.Array:
        return self.encode(variables, batch).features

    def _logits(self, variables: PyTree, batch: Mapping[str, jax.Array]) -> jax.Array:
        return self.encode(variables, batch).logits

    def apply(
        self,
        params: PyTree,
        model_state: PyTree,
        image: jax.Array,
        rng: jax.Array,
        *,
        train: bool,
        **hidden: jax.Array,
    ) -> tuple[models.Output, PyTree]:
        """Run the encoder on normalised images; returns its output and the new model state.

        `hidden` are the `source` or `kept` of a family that hides patches, or the `grids` of native
        images.
        """
        variables = {"params": params, **model_state}
        given = {"train": train, "rngs": {"dropout": rng}, **hidden}
        mutable = list(model_state)
        if train and mutable:
            out, state = self.module.apply(variables, image, mutable=mutable, **given)
            return out, dict(state)
        return self.module.apply(variables, image, **given), model_state


def own(objective: Objective, params: PyTree, state: PyTree = None) -> "Own | None":
    """Return what an objective trains beside the model, by the shapes of all parameters.

    With the model's `state` also the statistics of what is beside it.
    """
    from vit_jax.weights.layout import Own  # late: most runs read no weights

    names = objective.own_parameters
    if not names:
        return None

    def chosen(tree: Mapping[str, Any]) -> dict[str, Any]:
        return {name: tree[name] for name in names if name in tree}

    kept = {kind: found for kind, tree in (state or {}).items() if (found := chosen(tree))}
    return Own(chosen(params), objective.own_heads, objective.pair, kept)
