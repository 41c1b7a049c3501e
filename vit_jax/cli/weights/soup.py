# SPDX-License-Identifier: Apache-2.0
"""`vit_jax soup --from=RUN,RUN --to=DIR`: one model, the average of several checkpoints."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from vit_jax.cli.parsing import options
from vit_jax.cli.parsing.options import Options, flag
from vit_jax.cost.tables import align
from vit_jax.errors import UserError
from vit_jax.process import escapes, startup
from vit_jax.storage import files
from vit_jax.sweeps import soup as lib
from vit_jax.sweeps.soup import Ingredient


@dataclasses.dataclass(kw_only=True)
class SoupOptions(Options):
    """Averages the weights of checkpoints of one model, and measures each and the average.

    The checkpoints are of one run, or of runs that began with the same weights. DIR becomes a run
    of one checkpoint, which every --from and init.weights takes. BatchNorm's statistics are
    measured anew, on the training split. A greedy soup is chosen by an evaluation, of which its
    value is then no measure of what it does on other images.

      vit_jax soup --from=runs/vit_mu_digits@all --to=runs/soup
      vit_jax soup --from=runs/tuned_a,runs/tuned_b@400,runs/tuned_c --to=runs/soup --greedy
    """

    from_: tuple[str, ...] = flag(
        (),
        "runs' checkpoints: DIR, DIR@STEP, DIR@best, DIR@latest, or DIR@all, which is all that the "
        "run keeps",
        "DIR[@STEP],...",
        ask="which checkpoints? add --from=DIR@all, or --from=DIR,DIR of several runs",
    )
    to: Path | None = flag(None, "where the soup is written", "DIR", ask="where to? add --to=DIR")
    greedy: bool = flag(
        False, "from the best down, keep those with which the average gets no worse"
    )
    metric: str = flag("", "of the greedy choice; by default what the run ranks checkpoints by")
    ema: bool | None = flag(
        None, "the runs' moving averages, or not; default: what they were ranked by"
    )
    evaluate: bool = flag(
        True, "run the evaluations of the first run; --noevaluate averages alone, without data"
    )


def soup(given: SoupOptions) -> None:
    """Average, measure, write."""
    assert given.to is not None, "the flag is asked for"
    if given.metric and not given.greedy:
        raise UserError(f"--metric={given.metric} is of the greedy choice; add --greedy")
    if given.greedy and not given.evaluate:
        raise UserError("--greedy chooses by an evaluation; leave --noevaluate out")
    startup.configure()
    files.check_folder(given.to, "--to", force=False)
    found = lib.find(given.from_, given.ema)
    if line := lib.told(found):
        print(escapes.lines(line))
    kitchen = None
    if given.evaluate or lib.needs_data(found[0]):
        kitchen = lib.open_kitchen(found[0], measures=given.evaluate)
    metric = (given.metric or found[0].cfg.checkpoint.metric) if given.greedy else ""
    made = lib.cook(found, kitchen, greedy=metric, say=lambda line: print(escapes.lines(line)))
    lib.write(made, kitchen, given.to, metric or "uniform")
    print("\n".join(_table(found, made)))
    print(f"wrote {given.to}, of {len(made.used)} of {len(found)} checkpoints")


def _table(found: Sequence[Ingredient], made: lib.Soup) -> list[str]:
    names = [name for name in made.scores if "_ema/" not in name]
    rows = [
        [
            escapes.terminal(each.name),
            "yes" if each in made.used else "no",
            *(f"{made.each[each.name][name]:.4f}" for name in names),
        ]
        for each in found
    ]
    last = ["the soup", "", *(f"{made.scores[name]:.4f}" for name in names)]
    return align(("checkpoint", "in it", *names), [*rows, last], right=range(2, 2 + len(names)))


main = options.verb(SoupOptions, soup)
