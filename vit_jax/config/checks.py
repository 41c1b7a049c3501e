# SPDX-License-Identifier: Apache-2.0
"""What of a config goes together: each component's own checks, and those between components."""

import dataclasses
import math
import re
from collections.abc import Callable
from typing import Any

from vit_jax import data, errors, models, optim
from vit_jax.checkpoints.config import check_ranking
from vit_jax.config import native, reproducible
from vit_jax.config.tree import Config, check_micro_batches, guessed, metric_periods, plan
from vit_jax.data.checks import check_pad, check_target_settings
from vit_jax.devices import sharding
from vit_jax.errors import UserError
from vit_jax.evals import EVALUATORS, EvalConfig
from vit_jax.models import ModelConfig, patch_sizes
from vit_jax.models.layers.attention import AttentionImpl, check_target
from vit_jax.objectives import ObjectiveConfig, SupervisedConfig
from vit_jax.settings.fields import annotations, check_effects, conform


def check(cfg: Config) -> None:
    """Check all that needs neither data nor devices; an error is one line that names the field.

    Values in another form, "map" for Pool.MAP or 64 for (64,), are converted in place.
    """
    check_types(cfg)
    for rule in RULES:
        rule(cfg)


def check_types(cfg: Config) -> None:
    """Convert every value to its field's annotation, in place, and check its range (`conform`)."""
    _refuse_names(cfg, "")
    conform(cfg)


def _refuse_names(node: Any, path: str) -> None:
    """Raise UserError for the name of a model in place of its config, wherever a model stands."""
    kinds = annotations(type(node))
    for field in dataclasses.fields(node):
        value = getattr(node, field.name)
        if kinds[field.name] is ModelConfig:
            models.refuse_name(value, f"{path}{field.name}={value!r}")
        elif dataclasses.is_dataclass(value):
            _refuse_names(value, f"{path}{field.name}.")


def _guessed(cfg: Config) -> Config:
    """Return the config with numbers in place of those that it leaves to the data."""
    return guessed(cfg, num_examples=10**6, num_classes=10)


def model_exists(cfg: Config) -> None:
    """Refuse a model whose fields do not go together."""
    models.create(_guessed(cfg).model)


def pad_fits(cfg: Config) -> None:
    """Refuse to mirror an image beyond its far side."""
    check_pad(cfg.data.transform, models.input_shape(cfg.model)[:2], "data.transform")


def channels_fit(cfg: Config) -> None:
    """Refuse data, or a mean or std, of another number of channels than the model's."""
    data.check_channels(cfg.data, cfg.model.channels)


def width_has_rules(cfg: Config) -> None:
    """Refuse an optimizer that has no rule for the width that a model grows to."""
    if models.growth(cfg.model) is not None:
        optim.check_width(cfg.optim)


def head_is_trained(cfg: Config) -> None:
    """Refuse a head that the objective does not train."""
    if cfg.model.num_classes and not cfg.objective.uses_labels:
        what = f"{type(cfg.objective).__name__} trains no head"
        raise UserError(f"{what}; set model.num_classes=0, not {cfg.model.num_classes}")


def objective_fits(cfg: Config) -> None:
    """Refuse an objective that does not go with the model, whatever the data will be."""
    check_target_settings(cfg.data, bool(cfg.objective.pixel_target))
    cfg.objective.check(cfg.model, cfg.data)


def patches_fit(cfg: Config) -> None:
    """Refuse sizes of patches that the model cannot take, or a draw of no use."""
    draws = patch_sizes.draws(cfg.model)
    if draws != (0,) and not isinstance(cfg.objective, SupervisedConfig):
        learns = f"{type(cfg.objective).__name__} has patches of one size"
        raise UserError(f"{learns}; set model.drawn_patches=()")
    wanted = [("model.drawn_patches", side) for side in draws]
    wanted += [(f"evals.{name}.patch", ev.patch) for name, ev in cfg.evals.items()]
    for field, side in wanted:
        try:
            models.create(patch_sizes.at(_guessed(cfg).model, side))
        except UserError as error:
            raise UserError(f"{field}={side}: {error}") from None


def steps_divide_the_batch(cfg: Config) -> None:
    """Refuse micro-batches of more than one size, or of a loss that compares a batch's examples."""
    if cfg.data.batch_size:
        check_micro_batches(cfg)
    if cfg.accum_steps > 1 and not cfg.objective.splits_batch:
        why = f"would cut the batch, whose examples {type(cfg.objective).__name__} compares"
        advice = "set 1, and mesh.fsdp or model.remat=full"
        raise UserError(f"accum_steps={cfg.accum_steps} {why}; {advice}")


def average_is_kept(cfg: Config) -> None:
    """Refuse to keep no moving average where something reads it."""
    check_effects(cfg, "", [(cfg.ema_decay > 0, "without ema_decay", "ema_decay_end")])
    if cfg.objective.needs_average and not cfg.ema_decay:
        learns = f"{type(cfg.objective).__name__} learns from the moving average of its parameters"
        raise UserError(f"{learns}; set ema_decay, such as 0.996")


def lora_fits(cfg: Config) -> None:
    """Refuse low-rank changes of nothing, or of what has no rule for them."""
    lacks = {
        "frozen weights to change; set init.weights": not cfg.init.weights,
        "a rule for model.mup_base_dim; set 0": models.growth(cfg.model) is not None,
        f"classes to learn by {type(cfg.objective).__name__}": not cfg.objective.uses_labels,
    }
    why = next((what for what, is_lacking in lacks.items() if is_lacking), "")
    if cfg.is_adapted and why:
        raise UserError(f"lora.pattern={cfg.lora.pattern!r} lacks {why}")


def evals_fit(cfg: Config) -> None:
    """Refuse an evaluation of an odd name, or of what the objective does not train."""
    for name, evaluation in cfg.evals.items():
        if not re.fullmatch(r"[a-z0-9_]+", name) or name in ("train", "perf"):
            raise UserError(f"evals.{name}: use a-z, 0-9 and _, and neither 'train' nor 'perf'")
        _check_eval(evaluation, name, cfg.objective)
        evaluation.check_model(f"evals.{name}", cfg.model)


def _check_eval(evaluation: EvalConfig, name: str, objective: ObjectiveConfig) -> None:
    """Raise UserError for an invalid evaluation, or one of logits that no head is trained for."""
    of_pixels = {each.predictor for each in EVALUATORS if each.needs_target}
    lacks = dict.fromkeys(of_pixels - set(objective.predicts), "says no such thing of pixels")
    if objective.head_loss is None:
        lacks["logits"] = "trains no head for classes"
    if not objective.gives_numbers:
        lacks["value"] = "learns no numbers"
    if not objective.scores_images:
        lacks["loss"] = "has no loss of an image by itself"
    if not objective.embeds_texts:
        lacks["image_embedding"] = "learns from no texts"
    kinds = [each for each in EVALUATORS if each.predictor not in lacks]
    if type(evaluation) not in kinds:
        why = lacks.get(evaluation.predictor, "")
        why = f", and {type(objective).__name__} {why}" if why else ""
        valid = ", ".join(kind.__name__ for kind in kinds)
        raise UserError(f"evals.{name} is a {type(evaluation).__name__}{why}; choose {valid}")
    evaluation.check(f"evals.{name}")


def best_is_measured(cfg: Config) -> None:
    """Refuse to rank checkpoints by a metric that is not measured in training."""
    check_ranking(cfg.checkpoint, metric_periods(cfg))


def durations_are_some(cfg: Config) -> None:
    """Refuse durations that cannot be read; without the data, so that a typo is found before it."""
    cfg = _guessed(cfg)
    plan(cfg, num_examples=cfg.data.batch_size)


def mesh_divides_the_batch(cfg: Config) -> None:
    """Refuse a batch that the axes of the mesh whose sizes are given cannot split."""
    sizes = [getattr(cfg.mesh, axis) for axis in sharding.BATCH_AXES]
    if cfg.data.batch_size:
        check_batch(cfg, math.prod(size for size in sizes if size > 0))


# In this order: the first that fails is what is shown. Each raises UserError.
RULES: tuple[Callable[[Config], None], ...] = (
    model_exists,
    lambda cfg: data.check(cfg.data),
    pad_fits,
    channels_fit,
    native.check,
    lambda cfg: cfg.optim.check(),
    width_has_rules,
    head_is_trained,
    objective_fits,
    patches_fit,
    steps_divide_the_batch,
    average_is_kept,
    lambda cfg: cfg.init.check(),
    lambda cfg: cfg.lora.check(),
    lora_fits,
    lambda cfg: cfg.objective.check_start(cfg.init.weights),
    evals_fit,
    best_is_measured,
    lambda cfg: cfg.faults.check(),
    durations_are_some,
    mesh_divides_the_batch,
)


def check_batch(cfg: Config, shards: int) -> None:
    """Raise UserError for a batch, or heads, that the mesh cannot split; `shards` of the batch."""
    reproducible.check(cfg, shards)
    size, steps = cfg.data.pack or cfg.data.batch_size, cfg.accum_steps
    if (micro := size // steps) % shards:
        field = "data.pack" if cfg.data.pack else "data.batch_size"
        near = max(round(size / (shards * steps)), 1) * shards * steps
        fewer = max(n for n in range(1, shards) if micro % n == 0)
        raise UserError(
            f"{field}={size} cannot be split over {shards} devices x accum_steps={steps}; "
            f"the nearest that can is {near}, and this one can over {fewer}"
        )
    heads = getattr(cfg.model, "num_heads", ())
    each = heads if isinstance(heads, tuple) else (heads,)  # Swin has a number for each stage
    if cfg.mesh.tensor > 1 and any(count % cfg.mesh.tensor for count in each):
        raise UserError(f"mesh.tensor={cfg.mesh.tensor} must divide model.num_heads={heads}")


def check_kernel(cfg: Config) -> None:
    """Raise UserError if the hardware lacks the kernel of `model.attention`.

    Only training checks it: elsewhere XLA's attention computes the same.
    """
    check_target(getattr(cfg.model, "attention", AttentionImpl.AUTO))


def check_classes(cfg: Config, num_classes: int) -> None:
    """Raise UserError for a head whose width is not the dataset's number of classes."""
    count, advice = cfg.model.num_classes, errors.setting(f"config.model.num_classes={num_classes}")
    if cfg.objective.uses_labels and count not in (0, num_classes):
        has = f"{cfg.data.name} has {num_classes} classes"
        raise UserError(f"model.num_classes={count}, but {has}; set {advice}")
