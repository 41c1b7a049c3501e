# SPDX-License-Identifier: Apache-2.0
"""Joining the processes of a run: the cluster that the environment describes."""

import os
import re
from collections.abc import Mapping
from typing import Any

import jax

from vit_jax.errors import UserError

HEARTBEAT_TIMEOUT = 30  # seconds
SHUTDOWN_TIMEOUT = 60  # longer than the first process takes for a run's last files


def join() -> None:
    """Join the cluster that the environment describes (TPU pod, Slurm, Open MPI, Kubernetes).

    A single process does nothing. `JAX_COORDINATOR_ADDRESS`, `JAX_NUM_PROCESSES` and
    `JAX_PROCESS_ID` describe a cluster by hand; `JAX_NUM_PROCESSES=1` alone says that a process
    that looks like one of a cluster's is a run of its own. Must run before any other jax call.

    Raises:
        UserError: half a description, or a cluster that could not be joined.
    """
    env = os.environ
    by_hand: tuple[Any, ...] = ()
    address = env.get("JAX_COORDINATOR_ADDRESS")
    if address is not None:
        try:
            count, index = int(env["JAX_NUM_PROCESSES"]), int(env["JAX_PROCESS_ID"])
        except (KeyError, ValueError) as error:
            raise UserError(
                "JAX_COORDINATOR_ADDRESS is set: set JAX_NUM_PROCESSES and JAX_PROCESS_ID as well"
            ) from error
        if not re.fullmatch(r".+:\d+", address):
            raise UserError(f"JAX_COORDINATOR_ADDRESS={address} must be HOST:PORT")
        by_hand = (address, count, index)
    elif env.get("JAX_NUM_PROCESSES") == "1" or not _in_cluster(env):
        return
    try:
        # The others learn that a process died after the heartbeats' timeout, 100 s by default.
        # One that ends by an error of its own waits for the others, 300 s by default.
        jax.distributed.initialize(
            *by_hand,
            heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT,
            shutdown_timeout_seconds=SHUTDOWN_TIMEOUT,
        )
    except Exception as error:  # of jax, and of the clients of Kubernetes and metadata servers
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"cannot join the cluster of this environment: {reason}; "
            "set JAX_COORDINATOR_ADDRESS=HOST:PORT, JAX_NUM_PROCESSES and JAX_PROCESS_ID by hand, "
            "or JAX_NUM_PROCESSES=1 for a run of this process alone"
        ) from error


def _in_cluster(env: Mapping[str, str]) -> bool:
    if "TPU_WORKER_HOSTNAMES" in env or env.get("TPU_ML_PLATFORM") == "JAX":
        return (
            len(env.get("TPU_WORKER_HOSTNAMES", "").split(",")) > 1
            or "MEGASCALE_COORDINATOR_ADDRESS" in env
            # A Cloud TPU VM, where jax sets the first and asks the metadata server for the pod's
            # hosts; the second says that there is no such server.
            or (env.get("TPU_ML_PLATFORM") == "JAX" and "TPU_SKIP_MDS_QUERY" not in env)
        )
    return (
        # The step's count, not the job's: a batch script or a shell is no task of srun's.
        int(env.get("SLURM_STEP_NUM_TASKS") or 1) > 1
        or int(env.get("OMPI_COMM_WORLD_SIZE") or 1) > 1
        or "MEGASCALE_COORDINATOR_ADDRESS" in env
        # A pod of an Indexed Job; jax asks Kubernetes for the others.
        or ("KUBERNETES_SERVICE_HOST" in env and "JOB_COMPLETION_INDEX" in env)
    )
