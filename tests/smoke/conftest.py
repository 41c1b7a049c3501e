# SPDX-License-Identifier: Apache-2.0
"""One short run of README's first config, which the other tests look at, continue or learn from."""

from pathlib import Path

import pytest

from vit_jax.__main__ import main

ROOT = Path(__file__).parents[2]
STEPS = 40
CONFIG = (
    f"--config={ROOT}/configs/vit_mu_digits.py",
    f"--config.duration={STEPS} steps",
    "--config.optim.warmup=5 steps",
    "--config.checkpoint.every=10 steps",
    "--config.evals.val.every=20 steps",
    "--config.log.every=1 steps",
    "--config.log.tensorboard=false",
)


def train(workdir: Path, *args: str) -> int:
    """Run `vit_jax train` in this process, on one device unless told otherwise."""
    return main(["vit_jax", "train", f"--workdir={workdir}", "--config.mesh.data=1", *args])


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the workdir of the run, which nobody changes."""
    workdir = tmp_path_factory.mktemp("smoke") / "digits"
    assert train(workdir, *CONFIG) == 0
    return workdir
