# SPDX-License-Identifier: Apache-2.0
"""What the features are worth before the first step, which later ones are compared with."""

from vit_jax.evals import FeaturesEval, ProbeEval
from vit_jax.evals.drift import FILE, Drift
from vit_jax.train.begin import Position
from vit_jax.train.run import Run


def measure(run: Run, at: Position) -> None:
    """Measure a new run that has a `FeaturesEval`, its periodic probes too, and log it as step 0.

    Of a run that is continued, the features of its start are read from its workdir.
    """
    found = [name for name, each in run.cfg.evals.items() if isinstance(each, FeaturesEval)]
    if at.state is None:
        return
    fresh = at.step == 0
    variables = run.whole({"params": at.state.params, **at.state.model_state})
    for name in found:
        each, file = run.opened.evaluators[name], run.opened.path / name / FILE
        assert isinstance(each, Drift)
        each.begin(run.predictors(name), variables, file, fresh=fresh)
    if fresh:
        evals = run.cfg.evals.items()
        probes = [name for name, each in evals if isinstance(each, ProbeEval) and each.every]
        run.log_evals(0, run.evaluate(at.state, [*found, *probes], report=""))
