# SPDX-License-Identifier: Apache-2.0
"""`vit_jax prune --from=RUN --mlp=0.5 --heads=0.25 --to=DIR`: a smaller network of a run."""

import dataclasses
from pathlib import Path
from typing import Any

from vit_jax import models, trees
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import WeightsOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.config import saved as config_json
from vit_jax.cost.flops import forward_flops
from vit_jax.cost.tables import align
from vit_jax.inference import pruning
from vit_jax.inference.pruning import Pruned
from vit_jax.inference.trained import Trained, read_weights, title
from vit_jax.models.pruning import Shares, counts
from vit_jax.storage import files
from vit_jax.train import branch, metadata
from vit_jax.weights.config import InitConfig
from vit_jax.workdir import folder as workdir

HISTORY = "pruned"  # in a checkpoint's metadata: from what, and how


@dataclasses.dataclass(kw_only=True)
class Prune(WeightsOptions):
    """Removes attention heads and MLP units from the network of a run.

    Every layer loses the same share, those of the lowest Taylor score: the mean over images of
    |activation x gradient|. DIR becomes a run of one checkpoint, which every --from and
    init.weights takes; its config.json trains on from there. For ViT, DeiT and hybrids.

      vit_jax prune --from=runs/vit_mu_digits --mlp=0.5 --heads=0.25 --to=runs/pruned
      vit_jax train --config=runs/pruned/config.json --workdir=runs/pruned_tuned \\
          --config.optim.lr=1e-3 --config.duration="20 epochs"
    """

    to: Path | None = flag(
        None, "where the smaller run is written", "DIR", ask="where to? add --to=DIR"
    )
    mlp: float = flag(0.0, "share of each MLP's hidden units to remove", least=0, below=1)
    heads: float = flag(0.0, "share of each layer's heads to remove", least=0, below=1)
    examples: int = flag(512, "images of the training split that decide, drawn by --seed", least=1)
    seed: int = flag(0, "of that draw", least=0)
    batch_size: int = flag(64, "images read at once", least=1)


def prune(given: Prune, found: Trained) -> None:
    """Prune, write the run, print the sizes before and after."""
    assert given.to is not None, "the flag is asked for"
    shares = Shares(given.heads, given.mlp)
    pruning.check(found)
    files.check_folder(given.to, "--to", force=False)
    trained = read_weights(found, headless=True)
    settings = {"examples": given.examples, "seed": given.seed}
    small = pruning.prune(trained, shares, batch_size=given.batch_size, **settings)
    history = {"from": title(found), **shares._asdict(), **settings}
    write(small, trained, given.to, history)
    by = f", by {small.scored}" if small.scored else ""
    print(f"{title(found)}{by}")
    print("\n".join(_table(trained, small)))
    print(f"wrote {given.to}; to train on from there:")
    print(f"  vit_jax train --config={given.to / workdir.CONFIG} --workdir=DIR")


def write(small: Pruned, trained: Trained, folder: Path, history: dict[str, Any]) -> None:
    """Write a workdir with one checkpoint, at the step of the run that it is made of.

    A run with a moving average gets the same parameters as its average.
    """
    from vit_jax.checkpoints.checkpointer import Checkpointer
    from vit_jax.weights.readers.ckpt import Checkpoint

    cfg = trained.config
    assert cfg is not None, "pruning.check"
    saved = Checkpoint(trained.source.partition(":")[2]).metadata
    cfg = branch.alone(cfg, saved)
    cfg = dataclasses.replace(cfg, model=small.model, init=InitConfig(weights=f"ckpt:{folder}"))
    described = {**saved, "config": config_json.to_json(cfg), HISTORY: history}
    variables = dict(small.variables)
    state: dict[str, Any] = {"params": variables.pop("params")}
    if variables:
        state["model_state"] = variables
    if cfg.ema_decay:
        state["ema"] = dict(small.variables)
    with workdir.lock(folder):
        checkpoints = Checkpointer(folder / workdir.CHECKPOINTS, CheckpointConfig())
        checkpoints.save(trained.step or 0, state, metadata=described)
        checkpoints.wait()
        metadata.write(folder, described)


def _table(before: Trained, after: Pruned) -> list[str]:
    rows = []
    for model, variables in ((before.model, before.variables), (after.model, after.variables)):
        height, width, channels = models.input_shape(model)
        flops = forward_flops(models.create(models.looped(model)), (height, width), channels)
        heads, mlp = counts(model)
        sizes = (heads, mlp, trees.num_params(variables["params"]))
        rows.append([*(f"{size:,}" for size in sizes), f"{flops / 1e9:.4g}"])
    names = ("heads a layer", "MLP units a layer", "parameters", "GFLOPs an image")
    lines = [[name, old, new] for name, old, new in zip(names, *rows, strict=True)]
    return align(("", "before", "after"), lines, right=(1, 2))


main = options.verb(Prune, prune, model_options.read)
