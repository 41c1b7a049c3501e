# SPDX-License-Identifier: Apache-2.0
"""Build a Config: the objective, the optimizer, the step and the state's shapes; open its data."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import jax
import numpy as np
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from vit_jax import config as config_lib
from vit_jax import data, evals, models, objectives, optim
from vit_jax.config.tree import Config, Plan
from vit_jax.data import account
from vit_jax.data.checks import check_labels
from vit_jax.data.sources import partition
from vit_jax.data.sources.base import account_of, gives_numbers
from vit_jax.devices import sharding
from vit_jax.errors import UserError, setting
from vit_jax.evals import classes
from vit_jax.models import patch_sizes
from vit_jax.objectives import Objective
from vit_jax.process import waiting
from vit_jax.settings.durations import Clock
from vit_jax.train import data_identity, texts
from vit_jax.train.state import TrainState, make_init, make_state
from vit_jax.train.step import TrainStep, jit_step, make_train_step
from vit_jax.trees import PyTree


@dataclasses.dataclass(frozen=True)
class Program:
    """A training step, pure and not jitted, and the objective whose loss it takes."""

    objective: Objective
    step: TrainStep


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a config builds to; holds no memory on a device.

    Attributes:
        objective: what a step learns, with the model that learns it.
        plan: durations in steps.
        schedule: step -> learning rate.
        init: PRNG key -> TrainState, pure.
        programs: one for each of `models.patch_sizes.sides`, so that most runs have a single one;
            the first takes the most work and memory.
        gradients: how many each of them takes: 2 with a climb (`optim.make_climb`), else 1.
        shards: `mesh.reproducible`.
        abstract: the state's shapes and dtypes.
        constant: makes frozen parameters constants to the loss; None if none is frozen.
    """

    objective: Objective
    plan: Plan
    schedule: optax.Schedule
    init: Callable[[jax.Array], TrainState]
    programs: Sequence[Program]
    gradients: int
    shards: int
    abstract: TrainState
    constant: Callable[[PyTree], PyTree] | None

    @property
    def frozen(self) -> PyTree:
        """Shapes and dtypes of what the step takes besides the state, and never changes."""
        return self.objective.frozen

    @property
    def params(self) -> PyTree:
        """Shapes and dtypes of all parameters with which the model computes."""
        return jax.eval_shape(self.objective.whole, self.abstract.params, self.frozen)


def build(cfg: Config, num_examples: int) -> Parts:
    """Build everything by shapes alone, for a training split of `num_examples`.

    Raises UserError: settings that do not go together.
    """
    plan = config_lib.plan(cfg, num_examples)
    objective = make_objective(cfg, plan.clock)
    key = jax.eval_shape(lambda: jax.random.key(0))
    # The model is traced once: the run's shapes follow from these.
    params, model_state = jax.eval_shape(objective.init, key)
    config_lib.check_statistics(cfg, model_state)
    own = jax.eval_shape(objective.init_state, key)
    settings = optim.also_frozen(cfg.optim, cfg.objective.locked)
    tx, schedule = optim.make_optimizer(settings, params, plan.clock, models.growth(cfg.model))
    climb = optim.make_climb(settings, params, plan.clock)
    constant = optim.make_constant(cfg.optim, params)
    kept = {"with_ema": cfg.ema_decay > 0, "skip_spikes": cfg.faults.skip_spikes}
    init = make_init(objective.init, tx, init_objective=objective.init_state, **kept)
    decay = cfg.ema_decay
    if cfg.ema_decay_end:
        decay = optim.cosine(decay, cfg.ema_decay_end, plan.total_steps)
    make_step = functools.partial(
        make_train_step,
        tx=tx,
        schedule=schedule,
        accum_steps=cfg.accum_steps,
        ema_decay=decay,
        spike_sigmas=cfg.faults.spike_sigmas,
        reduce_dtype=cfg.reduce_dtype,
        climb=climb,
        shards=cfg.mesh.reproducible,
        constant=constant,
    )
    each = [objective.of_patch(side) for side in patch_sizes.sides(cfg.model)]
    programs = [Program(one, make_step(one)) for one in each]

    def around(params: PyTree, model_state: PyTree, key: jax.Array, own: PyTree) -> TrainState:
        return make_state(params, model_state, key, tx, objective=own, **kept)

    abstract = jax.eval_shape(around, params, model_state, key, own)
    gradients, shards = 2 if climb else 1, cfg.mesh.reproducible
    return Parts(objective, plan, schedule, init, programs, gradients, shards, abstract, constant)


def make_objective(cfg: Config, clock: Clock) -> Objective:
    """Build the objective of a run; raises UserError: no layers of the model can be adapted."""
    objective = objectives.create(cfg.objective, cfg.model, cfg.data, clock)
    if not cfg.is_adapted:
        return objective
    from vit_jax.train.adapted import adapted  # late: it reads the weights that stay as they are

    return adapted(objective, cfg)


def shardings(parts: Parts, mesh: Mesh | AbstractMesh) -> TrainState:
    """Return the NamedSharding of every leaf of the state."""
    return sharding.shardings(parts.abstract, mesh)


def init_state(cfg: Config, parts: Parts, mesh: Mesh) -> TrainState:
    """Make the state of step 0, each leaf born in its sharding."""

    def init(seed: jax.Array) -> TrainState:
        return parts.init(jax.random.key(seed))

    with jax.set_mesh(mesh):
        # The seed is an argument, so that one cached program serves every seed.
        return jax.jit(init, out_shardings=shardings(parts, mesh))(np.asarray(cfg.seed))


def compile_steps(parts: Parts, mesh: Mesh) -> list[TrainStep]:
    """Jit the step of every program over the mesh (each compiled at its first call)."""
    state, frozen = shardings(parts, mesh), sharding.shardings(parts.frozen, mesh)
    return [jit_step(each.step, state, frozen, mesh, parts.shards) for each in parts.programs]


def lower_step(parts: Parts, mesh: Mesh, batch: dict[str, jax.ShapeDtypeStruct]) -> Any:
    """Trace the dearest step for a global batch.

    `.compile().memory_analysis()` is XLA's plan of it.
    """
    where = sharding.batch_sharding(mesh)
    batch = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for k, x in batch.items()}
    with jax.set_mesh(mesh):
        step = cast(Any, compile_steps(parts, mesh)[0])
        return step.lower(abstract_state(parts, mesh), placed(parts.frozen, mesh), batch)


def abstract_state(parts: Parts, mesh: Mesh | AbstractMesh) -> TrainState:
    """Return the state's ShapeDtypeStructs with their shardings, for a restore."""
    return placed(parts.abstract, mesh)


def placed(abstract: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Add to every ShapeDtypeStruct of a tree its sharding, by name."""

    def attach(leaf: jax.ShapeDtypeStruct, where: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree.map(attach, abstract, sharding.shardings(abstract, mesh))


def example_flops(parts: Parts) -> int:
    """Return the model FLOPs of training on one example, of all gradients that its step takes.

    It is the mean over the draws of `models.patch_sizes`.
    """
    variables = {"params": parts.params, **parts.abstract.model_state}
    each = [parts.objective.of_patch(side) for side in patch_sizes.draws(parts.objective.model)]
    found = sum(one.flops(variables) for one in each)
    if parts.constant is not None:
        from vit_jax.train.adapted import saved_flops  # late: most runs freeze nothing

        found -= sum(saved_flops(one.model, parts.constant, variables) for one in each)
    return found // len(each) * parts.gradients


def open_train(cfg: Config) -> data.Source:
    """Open the training split and check that it fits the model and the loss.

    Raises UserError: no such dataset, or another number of classes than the model's.
    """
    name, split, directory = cfg.data.name, cfg.data.train_split, cfg.data.data_dir
    flag = setting("config.data.train_split")
    how = {"cache": cfg.data.cache, "classes": cfg.data.classes, "bands": cfg.data.bands}
    how |= {"captions": texts.needed(cfg), "target": cfg.objective.pixel_target}
    with waiting.said(f"opening {name}"), data.split_of(flag):
        source = texts.tokenized(cfg, data.open_source(name, directory, split, **how))
    account.tell(source.name, account_of(source), strict=cfg.data.strict)
    data.check_bands(source, cfg.data, cfg.model.channels)
    cfg.objective.check_source(source, cfg.data.max_broken)
    config_lib.check_classes(cfg, source.num_classes)
    return source


def fitted(cfg: Config, source: data.Source) -> Config:
    """Fill in what a config leaves to its training split; raises UserError: nothing to learn."""
    cfg = _where_labelled(config_lib.fitted(cfg, len(source), source.num_classes))
    return dataclasses.replace(cfg, objective=cfg.objective.fitted(source))


def _where_labelled(cfg: Config) -> Config:
    """Leave out, with a line, the probes that ask for it and have a split without labels."""
    found = dict(cfg.evals)
    for name, each in cfg.evals.items():
        if not getattr(each, "where_labelled", False):
            continue
        for source in evals.open_splits(each, cfg.data, f"evals.{name}").values():
            if source.labels is not None and np.max(source.labels, initial=-1) < 0:
                del found[name]
                if jax.process_index() == 0:
                    print(f"evals.{name} is left out: {source.name} has no labels", flush=True)
                break
    return dataclasses.replace(cfg, evals=found) if len(found) < len(cfg.evals) else cfg


def open_evals(cfg: Config, train: data.Source) -> dict[str, dict[str, data.Source]]:
    """Open the splits of every evaluation, as `EvalConfig.splits` names them.

    Labels are numbered by the names of their classes: as in training for what the model's head is
    asked (`evals.classes.rule`), else alike in the splits of an evaluation.

    Raises UserError: no such dataset or split; classes that are none of training's, for an
    evaluation of the model's head; splits that an evaluation cannot use.
    """
    sources: dict[str, dict[str, data.Source]] = {}
    told = {account.dataset_of(train.name)}
    for name, each in cfg.evals.items():
        splits = evals.open_splits(each, cfg.data, where := f"evals.{name}")
        dataset = account.dataset_of(splits[""].name)
        if dataset not in told:
            told.add(dataset)
            account.tell(splits[""].name, account_of(splits[""]), strict=cfg.data.strict)
        if partition.same_dataset(each.dataset or cfg.data.name, cfg.data.name):
            data_identity.warn_overlap(cfg, name, train, splits[""])
        by_head = ("logits", "value", "loss") if cfg.objective.uses_labels else ("logits",)
        if each.predictor in by_head:
            advice = f"set another {where}.dataset, or train on its classes too"
            try:
                for key, each_split in splits.items():
                    splits[key] = classes.numbered(each_split, train.class_names, advice)
            except UserError as error:
                raise UserError(f"{where}: {error}") from None
            if not gives_numbers(splits[""]):
                check_labels(splits[""], f"set another {where}.split")
        elif "train" in splits:
            splits["train"], splits[""] = classes.joined(splits["train"], splits[""])
        for line in each.check_sources(where, splits):
            if jax.process_index() == 0:
                print(line, flush=True)
        sources[name] = splits
    return sources


def evaluators(
    cfg: Config,
    sources: Mapping[str, Mapping[str, data.Source]],
    train: data.Source,
    mesh: Mesh,
    tick: Callable[[], None],
) -> dict[str, evals.Evaluator]:
    """Build the evaluator of each of `cfg.evals` on its splits; `tick` is called after a batch."""
    height, width, channels = models.input_shape(cfg.model)
    views = functools.partial(evals.EvalContext, image_size=(height, width), channels=channels)
    patch = models.native_patch(cfg.model)
    context = functools.partial(
        views, patch=patch, data=cfg.data, mesh=mesh, loss=cfg.objective.head_loss, tick=tick
    )
    found = {}
    for name, splits in sources.items():
        own = context(sources=splits, name=name, tokenizer=texts.tokenizer(train))
        found[name] = evals.create(cfg.evals[name], own)
    return found
