# SPDX-License-Identifier: Apache-2.0
"""Disturb runs of two Slurm nodes in a bad bucket for some minutes, and compare their ends.

    python -m tests.engines.soak --minutes=20 [--seed=N]

Slurm and the S3 server are real, and started here. Tasks are killed, stopped (a hang) and told to
stop, the job is preempted by another, nodes lose their disks, and the bucket delays, refuses, loses
and cuts answers. Exit status 0: every bit of each run's end is that of the undisturbed one.
"""

import argparse
import os
import random
import tempfile
import time
from pathlib import Path

import jax

from tests.engines import jobs, s3, slurm
from tests.integration.train.test_resume import finish

KINDS = ("SIGKILL", "SIGKILL", "SIGSTOP", "SIGTERM", "scancel", "preempted")


def main() -> None:
    """Soak, and say what was done."""
    parser = argparse.ArgumentParser(description="Disturb runs in Slurm.")
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--faults", type=int, default=8, help="of a run; the script allows ten")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    jax.config.update("jax_num_cpu_devices", 2)  # of the reference
    number = 0
    with tempfile.TemporaryDirectory(prefix="soak") as scratch:
        place = Path(scratch)
        # All nodes share it: a node that compiles alone would look like one that hangs.
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(place / "programs"))
        jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
        finish(place / "reference", run=jobs.RUN)  # on two devices
        with slurm.running(place / "slurm") as cluster, s3.running(place / "moto.log") as server:
            end = time.monotonic() + 60 * asked.minutes
            while time.monotonic() < end:
                own = place / str(number)
                own.mkdir()
                seed, number = asked.seed + number, number + 1
                given = {"seed": seed, "kinds": KINDS, "times": asked.faults}
                print(jobs.soak(cluster, server, own, place / "reference", **given), flush=True)


if __name__ == "__main__":
    main()
