# SPDX-License-Identifier: Apache-2.0
"""What a step of the digits' run costs the host besides its data, beside the step itself.

    python -m benchmarks.host_overhead

The run's own loop, log, progress and transfer of every batch, twice: with a step that passes the
whole state on and computes nothing, and with the real one. The batch in the host's memory is always
the same, and the first step, which compiles, is left out. The host's time is CPU time, which other
programs on the machine disturb less than the wall's; so is the step's where the CPU is the device.
"""

import argparse
import dataclasses
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import record

_WORK = "digits host overhead per step"
_PEER = "the same loop with its real step"


def seconds_per_step(
    steps: int, *, compute: bool, repeats: int, now: Callable[[], float]
) -> list[float]:
    """Train so many steps in this process, `repeats` times; each time's mean seconds per step.

    Args:
        steps: of every time.
        compute: take the real step; else one that only counts.
        repeats: how often.
        now: the goodput.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from configs.vit_mu_digits import get_config
    from vit_jax import models
    from vit_jax.checkpoints.checkpointer import Checkpointer
    from vit_jax.devices import sharding
    from vit_jax.objectives import Batch
    from vit_jax.process import preemption
    from vit_jax.train import build, early_stop, loop
    from vit_jax.train.begin import Opened, Position
    from vit_jax.train.health.stragglers import Stragglers
    from vit_jax.train.health.unreadable import Unreadable
    from vit_jax.train.report.goodput import Goodput, Phase
    from vit_jax.train.report.metric_buffer import MetricBuffer
    from vit_jax.train.report.progress import Progress
    from vit_jax.train.report.writers import make_writer
    from vit_jax.train.run import Run
    from vit_jax.train.state import TrainState

    cfg = get_config()
    cfg.evals, cfg.checkpoint.keep_best = {}, 0
    cfg.duration = cfg.checkpoint.every = f"{steps} steps"
    size = cfg.data.batch_size
    mesh, source = sharding.make_mesh(cfg.mesh), build.open_train(cfg)
    parts = build.build(cfg, num_examples=size)
    rng = np.random.default_rng(0)
    arrays = {
        "image": rng.integers(0, 256, (size, *models.input_shape(cfg.model)), np.uint8),
        "label": rng.integers(0, cfg.model.num_classes, size, np.int32),
    }

    def count(state: TrainState, frozen: Any, batch: Batch) -> tuple[TrainState, dict[str, Any]]:
        del frozen
        names = jax.eval_shape(step, parts.abstract, {}, batch)[1]
        metrics = {name: jnp.zeros(()) for name in names}
        return dataclasses.replace(state, step=state.step + 1), metrics

    step = parts.programs[0].step
    if not compute:
        program = dataclasses.replace(parts.programs[0], step=count)
        parts = dataclasses.replace(parts, programs=[program])

    def stream() -> Generator[dict[str, jax.Array], None, None]:
        while True:
            yield sharding.global_batch(arrays, mesh, batch_size=size)

    def once(place: Path) -> float:
        goodput = Goodput(now)
        writer = make_writer(cfg.log, place)
        with (
            jax.set_mesh(mesh),
            Progress(steps, size) as progress,
            preemption.Preemption() as stopped,
        ):
            opened = Opened(
                cfg=cfg,
                path=place,
                bucket="",
                goodput=goodput,
                source=source,
                splits={},
                evaluators={},
                mesh=mesh,
                parts=parts,
            )
            run = Run(
                opened=opened,
                bucket=None,
                metadata={},
                frozen={},
                checkpoints=Checkpointer(place / "checkpoints", cfg.checkpoint),
                buffer=MetricBuffer(cfg.faults, lambda step, loss: None),
                unreadable=Unreadable(0, str),
                stragglers=Stragglers(),
                writer=writer,
                progress=progress,
                examples_at_peak=None,
            )
            tally = early_stop.resume(cfg.checkpoint, {})
            begin = Position(build.init_state(cfg, parts, mesh), 0, {}, tally, saved={})
            goodput.switch(Phase.OTHER)
            loop.train(run, begin, stream(), stopped, None)
        writer.close()
        spent = goodput.seconds()
        return sum(spent[s] for s in (Phase.DATA, Phase.STEP, Phase.OTHER)) / (steps - 1)

    with tempfile.TemporaryDirectory() as root:
        return [once(Path(root, str(i))) for i in range(repeats)]


def row(host: Sequence[float], step: Sequence[float], load: float) -> record.Row:
    """Return the row of seconds per step without and with what the step computes."""
    return record.Row(
        work=_WORK,
        unit="ms",
        ours=1e3 * statistics.median(host),
        peer=_PEER,
        peer_value=1e3 * statistics.median(step),
        ratio=statistics.median(host) / statistics.median(step),
        load=load,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.host_overhead")
    parser.add_argument("--steps", type=int, default=300, help="that compute nothing")
    parser.add_argument("--real_steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    from vit_jax.process import startup

    startup.configure()
    import jax

    load, cpu = os.getloadavg()[0], time.process_time
    device = cpu if jax.default_backend() == "cpu" else time.monotonic
    host = seconds_per_step(args.steps, compute=False, repeats=args.repeats, now=cpu)
    step = seconds_per_step(args.real_steps, compute=True, repeats=args.repeats, now=device)
    record.report([row(host, step, load)], args.out)


if __name__ == "__main__":
    main()
