# SPDX-License-Identifier: Apache-2.0
"""What follows from the labels of one's own data: one an image, several, or numbers."""

import dataclasses

from vit_jax import data
from vit_jax.config.tree import Config
from vit_jax.data import Crop, MixConfig, TransformConfig
from vit_jax.data.sources.base import gives_numbers
from vit_jax.errors import UserError
from vit_jax.evals import ClassifyEval, EvalConfig, MultiLabelEval, RegressionEval
from vit_jax.models.losses import Loss
from vit_jax.objectives import RegressionConfig, SupervisedConfig
from vit_jax.process import waiting
from vit_jax.recipes import choose
from vit_jax.recipes import digits as digits_lib

RUNS = ("several", "numbers")
_KINDS = ("csv:", "tar:", "parquet:", "hf:")  # of datasets that may have either


def found_out(config: Config, name: str, data_dir: str = "") -> Config:
    """Return a recipe's config for what the images of a dataset have, and say so in one line.

    A dataset of one label an image, or one that cannot be opened, leaves it as it is: what is wrong
    with it is said when the run opens it.
    """
    if not data.full_name(name).startswith(_KINDS):
        return config
    try:
        source = data.open_source(name, data_dir, config.data.train_split)
    except UserError:
        return config
    if gives_numbers(source):
        found, what = for_numbers(config), "numbers: squared error, judged by the mean error (mae)"
    elif source.multi_label:
        found, what = for_several(config), "several labels: sigmoid loss, judged by mAP (map)"
    else:
        return config
    if waiting.is_first():
        print(f"{source.name}: an image has {what}", flush=True)
    return found


def for_several(config: Config) -> Config:
    """Return a config with a sigmoid loss and average precision in place of top-1."""
    objective = SupervisedConfig(loss=Loss.SIGMOID)
    return _judged(config, objective, MultiLabelEval, "map")


def for_numbers(config: Config) -> Config:
    """Return a config with a squared error, and errors of numbers in place of top-1."""
    return _judged(config, RegressionConfig(), RegressionEval, "mae")


def _judged(config: Config, objective: object, kind: type[EvalConfig], metric: str) -> Config:
    """Replace the objective and what its classes are judged by; the rest stays."""
    evals = {}
    for name, each in config.evals.items():
        shared = {f.name: getattr(each, f.name) for f in dataclasses.fields(EvalConfig)}
        evals[name] = kind(**shared) if isinstance(each, ClassifyEval) else each
    ranking = config.checkpoint.metric.partition("/")[0]
    checkpoint = dataclasses.replace(config.checkpoint, metric=f"{ranking}/{metric}")
    changed = {"objective": objective, "evals": evals, "checkpoint": checkpoint}
    return dataclasses.replace(config, **changed)


def digits(run: str) -> Config:
    """Learn several labels of scikit-learn's digits, or numbers, from `benchmarks.several_labels`.

    Raises UserError: no such run.
    """
    config = digits_lib.digits(digits_lib.vit())
    config.model.num_classes = 0
    config.data.train_split, config.data.mix = "train", MixConfig()
    config.duration, config.optim.warmup = "20 epochs", "10%"
    name = "csv:runs/digits_tables"
    if choose("run", run, RUNS) == "several":
        config = for_several(config)
        config.data.name = f"{name}/several.csv"
        config.evals["val"].split = "val"
        config.evals["test"] = dataclasses.replace(
            config.evals["test"], split="test", chosen_on="val"
        )
        return config
    config = for_numbers(config)
    config.data.name = f"{name}/numbers.csv?target=ink,slant"
    config.data.transform = TransformConfig(crop=Crop.RESIZE)  # a warp would change both numbers
    for name in ("val", "test"):
        config.evals[name].split = name
    return config
