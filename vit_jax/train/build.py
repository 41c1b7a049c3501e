# SPDX-License-Identifier: Apache-2.0
"""From a Config to the pieces that a run, a dry run, a benchmark or a test puts together."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import numpy as np
import optax
from flax import linen as nn
from jax.sharding import AbstractMesh, Mesh, NamedSharding

from vit_jax import config as config_lib
from vit_jax import data, evals, models, objectives, optim, sharding
from vit_jax.analysis.flops import count, train_flops
from vit_jax.config import Config, Plan
from vit_jax.data import mix
from vit_jax.errors import UserError
from vit_jax.evals import Predict
from vit_jax.losses import Loss
from vit_jax.train.state import TrainState, make_init, make_state
from vit_jax.train.step import TrainStep, jit_step, make_train_step

PyTree = Any


@dataclasses.dataclass(frozen=True)
class Parts:
    """What a config builds to; nothing of it holds memory on a device.

    Attributes:
        module: the model.
        objective: the loss of a step.
        plan: durations in steps.
        schedule: step -> learning rate.
        init: PRNG key -> TrainState, pure.
        step: the training step, pure and not jitted.
        predict: (variables, uint8 images) -> logits; one object, so that it is compiled once.
        abstract: the state's shapes and dtypes.
        frozen: those of what the step takes besides and never changes: a teacher's variables.
    """

    module: nn.Module
    objective: objectives.Objective
    plan: Plan
    schedule: optax.Schedule
    init: Callable[[jax.Array], TrainState]
    step: TrainStep
    predict: Predict
    abstract: TrainState
    frozen: PyTree


def build(cfg: Config, num_examples: int) -> Parts:
    """Build everything by shapes alone, for a training split of `num_examples`.

    Raises:
        UserError: settings that do not go together.
    """
    plan = config_lib.plan(cfg, num_examples)
    module = models.create(cfg.model)

    looped = models.looped(cfg.model)

    def init_model(key: jax.Array) -> tuple[PyTree, PyTree]:
        return models.init(models.create(looped), looped, key)

    key = jax.eval_shape(lambda: jax.random.key(0))
    # The model is traced this once: its own state's shapes are what the run's are made of.
    params, model_state = jax.eval_shape(init_model, key)
    tx, schedule = optim.make_optimizer(cfg.optim, params, plan.clock, models.growth(cfg.model))
    objective: objectives.Objective = objectives.Supervised(
        cfg=cfg.objective,
        apply=apply_with_state(module),
        num_classes=cfg.model.num_classes,
        mean=cfg.data.mean,
        std=cfg.data.std,
        mix=cfg.data.mix,
        erasing_prob=cfg.data.erasing_prob,
    )
    frozen = {}
    distill = cfg.objective.distill
    if distill.kind is not objectives.Distillation.NONE:
        objective = objectives.Distill(objective, distill, make_teacher(cfg))
        # A teacher whose logits are cached does not run.
        frozen = {} if distill.cache else {"teacher": models.abstract(distill.teacher)}
    kept = {"with_ema": cfg.ema_decay > 0, "skip_spikes": cfg.faults.skip_spikes}
    init = make_init(init_model, tx, **kept)
    step = make_train_step(
        objective,
        tx,
        schedule,
        accum_steps=cfg.accum_steps,
        ema_decay=cfg.ema_decay,
        spike_sigmas=cfg.faults.spike_sigmas,
        reduce_dtype=cfg.reduce_dtype,
    )
    around = functools.partial(make_state, tx=tx, **kept)
    abstract = jax.eval_shape(around, params, model_state, key)
    predict = make_predict(cfg, module)
    return Parts(module, objective, plan, schedule, init, step, predict, abstract, frozen)


def make_teacher(cfg: Config) -> objectives.Teacher:
    """Return (variables, the student's normalised images) -> the teacher's logits."""
    height, width, _ = models.input_shape(cfg.model)
    return objectives.make_teacher(
        cfg.objective.distill, cfg.data.mean, cfg.data.std, (height, width)
    )


def apply_with_state(module: nn.Module) -> Callable[..., tuple[models.Output, PyTree]]:
    """Return (variables, image, train, dropout key) -> (Output, new model_state)."""

    def apply(
        variables: PyTree, image: jax.Array, train: bool, rng: jax.Array
    ) -> tuple[Any, PyTree]:
        rngs = {"dropout": rng}
        mutable = [name for name in variables if name != "params"]
        if train and mutable:
            out, state = module.apply(variables, image, train=True, rngs=rngs, mutable=mutable)
            return out, dict(state)
        state = {name: variables[name] for name in mutable}
        return module.apply(variables, image, train=train, rngs=rngs), state

    return apply


def make_predict(cfg: Config, module: nn.Module) -> Predict:
    """Return (variables, uint8 images [B, H, W, C]) -> logits [B, K], in evaluation mode."""

    def predict(variables: PyTree, image: jax.Array) -> jax.Array:
        image = mix.normalize(image, cfg.data.mean, cfg.data.std)
        out = cast(models.Output, module.apply(variables, image, train=False))
        return out.logits

    return predict


def shardings(parts: Parts, mesh: Mesh | AbstractMesh) -> TrainState:
    """Return the NamedSharding of every leaf of the state."""
    return sharding.shardings(parts.abstract, mesh)


def init_state(cfg: Config, parts: Parts, mesh: Mesh) -> TrainState:
    """Make the state of step 0, each leaf born in its sharding."""

    def init(seed: jax.Array) -> TrainState:
        return parts.init(jax.random.key(seed))

    with jax.set_mesh(mesh):
        # The seed is an argument: one program, kept on disk, is every seed's.
        return jax.jit(init, out_shardings=shardings(parts, mesh))(np.asarray(cfg.seed))


def compile_step(parts: Parts, mesh: Mesh) -> TrainStep:
    """Jit the step over the mesh (compiled at its first call)."""
    frozen = sharding.shardings(parts.frozen, mesh)
    return jit_step(parts.step, shardings(parts, mesh), frozen, mesh)


def lower_step(parts: Parts, mesh: Mesh, batch: dict[str, jax.ShapeDtypeStruct]) -> Any:
    """Trace the step for a global batch; `.compile().memory_analysis()` is XLA's plan of it."""
    where = sharding.batch_sharding(mesh)
    batch = {k: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where) for k, x in batch.items()}
    with jax.set_mesh(mesh):
        step = cast(Any, compile_step(parts, mesh))
        return step.lower(abstract_state(parts, mesh), placed(parts.frozen, mesh), batch)


def abstract_state(parts: Parts, mesh: Mesh | AbstractMesh) -> TrainState:
    """Return the state's ShapeDtypeStructs with their shardings, what a restore fills."""
    return placed(parts.abstract, mesh)


def placed(abstract: PyTree, mesh: Mesh | AbstractMesh) -> PyTree:
    """Give every ShapeDtypeStruct of a tree its sharding, by name."""

    def attach(leaf: jax.ShapeDtypeStruct, where: NamedSharding) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=where)

    return jax.tree.map(attach, abstract, sharding.shardings(abstract, mesh))


def image_flops(cfg: Config, parts: Parts) -> int:
    """Return the model FLOPs of training on one image, a teacher's forward pass included."""
    height, width, channels = models.input_shape(cfg.model)
    image = jax.ShapeDtypeStruct((1, height, width, channels), "float32")
    variables = {"params": parts.abstract.params, **parts.abstract.model_state}
    # A stack that is a loop counts the same, and is traced in the time of one block.
    module = models.create(models.looped(cfg.model))
    flops = train_flops(count(functools.partial(module.apply, train=False), variables, image))
    if parts.frozen:
        flops += count(make_teacher(cfg), parts.frozen["teacher"], image)
    return flops * 2 if cfg.optim.sam_rho else flops  # the gradient here, and uphill


def open_train(cfg: Config) -> data.Source:
    """Open the training split and check that it fits the model and the loss.

    Raises:
        UserError: no such dataset, or another number of classes than the model's.
    """
    source = data.open_source(
        cfg.data.name,
        cfg.data.data_dir,
        cfg.data.train_split,
        cache=cfg.data.cache,
        classes=cfg.data.classes,
    )
    config_lib.check_classes(cfg, source.num_classes)
    if source.multi_label and cfg.objective.loss is Loss.SOFTMAX:
        raise UserError(
            f"{source.name} has several labels per image; set objective.loss=sigmoid, or bce"
        )
    return source


def open_evals(cfg: Config, train: data.Source) -> dict[str, data.Source]:
    """Open every evaluation's split and check that its class ids mean what training's mean.

    Raises:
        UserError: no such dataset or split, or other classes.
    """
    sources = {name: evals.open_split(ev, cfg.data) for name, ev in cfg.evals.items()}
    for name, source in sources.items():
        if source.class_names != train.class_names:
            here, there = len(source.class_names), len(train.class_names)
            pairs = zip(source.class_names, train.class_names, strict=False)
            differs = next((f": {a!r} is not {b!r}" for a, b in pairs if a != b), "")
            raise UserError(
                f"evals.{name}: the classes of {source.name} ({here}) are not those of "
                f"{train.name} ({there}){differs}; class ids would not mean the same"
            )
    return sources


def evaluator(cfg: Config, name: str, source: data.Source, mesh: Mesh) -> evals.Classify:
    """Build the evaluator of `cfg.evals[name]` on its split."""
    height, width, channels = models.input_shape(cfg.model)
    return evals.make_evaluator(
        cfg.evals[name],
        cfg.data,
        source,
        image_size=(height, width),
        channels=channels,
        mesh=mesh,
        loss=cfg.objective.loss,
        name=name,
    )
