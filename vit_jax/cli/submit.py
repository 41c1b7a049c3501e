# SPDX-License-Identifier: Apache-2.0
"""`vit_jax submit`: a run, or a sweep, as a job of Slurm; a run as a JobSet of Kubernetes."""

import dataclasses
import enum
import inspect
import itertools
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vit_jax.cli import train
from vit_jax.cli.parsing import flags, options
from vit_jax.cli.parsing.options import flag
from vit_jax.cli.train import Train
from vit_jax.errors import UserError

# Exit statuses of a run (docs/reliability.md). It continues after all of these: it was told to
# stop; a process hung, lost another one, was killed, or was stopped by srun before it listened.
_STOPPED, _LOST = 75, (71, 134, 137, 143)
# The same again would end the same way. A status of 2 may be that of a pod that came too late.
_BAD = (65, 66, 70)
_RESTARTS = 10  # after lost processes
_PORT = 8476  # of the coordinator, as jax chooses it
# GKE's names of TPUs, and the devices that jax makes of a chip.
_TPUS = {
    "v4": ("tpu-v4-podslice", 1),
    "v5e": ("tpu-v5-lite-podslice", 1),
    "v5p": ("tpu-v5p-slice", 1),
    "v6e": ("tpu-v6e-slice", 1),
    "tpu7x": ("tpu7x", 2),
}
_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}|UNLIMITED")


class To(enum.StrEnum):
    """Where the job goes."""

    SLURM = "slurm"
    JOBSET = "jobset"


@dataclasses.dataclass(kw_only=True)
class Submit(Train):
    """Submits a run to Slurm, where it continues after its time limit and after lost processes.

    The flags of `train` are the run's. They are checked here, with the batch and the mesh for
    these devices, before the job waits in a queue. Other options of sbatch: --print | sbatch
    --qos=high. With --to=jobset it prints a JobSet for `kubectl apply -f -` (JobSet 0.10 or newer).

      vit_jax submit --config=vit_l16_imagenet --workdir=/mnt/runs/l16 --nodes=4 --gpus-per-node=8
      vit_jax submit --array=runs/scaling --at-once=8 --gpus-per-node=1
      vit_jax submit --config=vit_l16_imagenet --workdir=gs://BUCKET/l16 --nodes=4 --tpu=v5e:4x4 \\
          --to=jobset --image=IMAGE | kubectl apply -f -
    """

    usage = "vit_jax submit --config=NAME --workdir=DIR --nodes=N --gpus-per-node=N [flags]"
    nodes: str = flag("1", "machines; MIN-MAX for as many as are free at each start", "N")
    gpus_per_node: int | None = flag(None, "GPUs of each; 0 for CPUs alone", least=0)
    cpus_per_task: int | None = flag(None, "cores for each GPU, or node without GPUs", least=1)
    array: Path | None = flag(None, "a sweep's directory: a task for each of its points", "DIR")
    at_once: int | None = flag(None, "tasks of the array that run at a time", least=1)
    time: str = flag("", "limit of Slurm: MINUTES, HH:MM:SS or DAYS-HH (default: 24:00:00)", "TIME")
    grace: int = flag(120, "seconds from the signal to save to the end", least=1)
    partition: str = flag("", "of Slurm; its own default otherwise")
    account: str = flag("", "of Slurm")
    name: str = flag("", "of the job; the last part of DIR otherwise")
    to: To = flag(To.SLURM, "jobset: print a JobSet of Kubernetes, submit nothing")
    image: str = flag("", "of the JobSet's containers, which have vit_jax on PATH", "IMAGE")
    volume: str = flag("", "a claim that the containers mount, with the path", "CLAIM:PATH")
    tpu: str = flag(
        "", "slices of GKE instead of GPUs, v5e:4x4 or 2xv5e:4x4; --nodes of all", "TPU"
    )
    print_: bool = flag(False, "print the script, submit nothing")


def read(cls: type[Submit], argv: Sequence[str]) -> tuple[Submit, Any, list[str]]:
    """Read a command line; returns the options, the run's config or None, the run's own flags.

    Dashes in the names of the job's flags are underscores, so that Slurm's spellings work.
    """
    own = {name.removesuffix("_") for name in inspect.get_annotations(cls)}
    job, run, words = [argv[0]], [], iter(argv[1:])
    for word in words:
        found = re.match(r"--?([\w-]+)", word)
        name = found[1].replace("-", "_") if found else ""
        if found is None or name not in own:
            run.append(word)
            continue
        job.append(f"--{name}{word[found.end() :]}")
        if "=" not in word and name != "print":
            job.extend(itertools.islice(words, 1))
    if flags.take("array", job)[0] is None:
        return *options.read_config(cls, [*job, *run]), run
    if run:
        raise UserError(f"--array trains what the sweep's manifest lists; drop {run[0]!r}")
    return *options.read_options(cls, job), None, []


def submit(given: Submit, cfg: Any, run: Sequence[str]) -> int | None:
    """Submit, or print what would be."""
    if given.dry_run or given.compile_for is not None:
        return train.train(given, cfg)  # reports, which need no job
    _check(given)
    if given.array is None:
        if not given.workdir:
            raise UserError("where to? add --workdir=DIR, which every node sees")
        for devices in _devices(given):
            _check_devices(cfg, devices)
    if given.to is To.JOBSET:
        # Late, as all that help does not need.
        import yaml

        print(yaml.safe_dump(jobset(given, run), sort_keys=False, width=100), end="")
        return None
    tasks = None
    if given.array is not None:
        from vit_jax.sweeps import in_bucket, point

        tasks = len(point.read_manifest(in_bucket.opened(given.array)))
    text = script(given, run, tasks)
    if given.print_:
        print(text, end="")
    else:
        print(f"job {_sbatch(text)}; squeue --me lists it")
    return None


def _check(given: Submit) -> None:
    """Raise UserError for flags that do not go together, and for names that are none."""
    slurm = ("array", "at_once", "time", "partition", "account", "cpus_per_task")
    others = slurm if given.to is To.JOBSET else ("image", "volume", "tpu")
    for name in others:
        if getattr(given, name):
            raise UserError(f"--{name} does nothing with --to={given.to.value}; drop it")
    if given.at_once and given.array is None:
        raise UserError("--at_once is for --array=DIR; add that, or drop it")
    if not (found := re.fullmatch(r"([1-9]\d*)(?:-([1-9]\d*))?", given.nodes)):
        raise UserError(f"--nodes={given.nodes} must be a number, or MIN-MAX")
    if found[2] and int(found[2]) < int(found[1]):
        raise UserError(f"--nodes={given.nodes} must be MIN-MAX, the smaller first")
    if given.array is not None and given.nodes != "1":
        raise UserError(f"--nodes={given.nodes}: a point of a sweep has one node; drop it")
    if given.to is To.JOBSET and found[2]:
        raise UserError(f"--nodes={given.nodes}: a JobSet has a fixed number; name one")
    if given.gpus_per_node is None and not given.tpu:
        raise UserError("how many GPUs has a node? add --gpus_per_node=N, 0 for CPUs alone")
    if given.gpus_per_node is not None and given.tpu:
        raise UserError("--gpus_per_node and --tpu: choose one")
    if given.time and not _TIME.fullmatch(given.time):
        raise UserError(f"--time={given.time} must be MINUTES, HH:MM:SS, DAYS-HH or UNLIMITED")
    for name in ("partition", "account"):
        if not re.fullmatch(r"[\w.,@+-]*", value := getattr(given, name)):
            raise UserError(f"--{name}={value} must have letters, digits and .,_@+- alone")


def _devices(given: Submit) -> list[int]:
    """Return the numbers of devices that the run may get; none for CPUs."""
    if given.tpu:
        slices, kind, shape = _slices(given.tpu)
        return [slices * math.prod(shape) * _TPUS[kind][1]]
    least, _, most = given.nodes.partition("-")
    counts = range(int(least), int(most or least) + 1)
    return [nodes * given.gpus_per_node for nodes in counts if given.gpus_per_node]


def _check_devices(cfg: Any, devices: int) -> None:
    """Raise UserError for a mesh or a batch that these devices cannot share."""
    from vit_jax import config as config_lib
    from vit_jax.devices import sharding

    mesh = sharding.abstract_mesh(cfg.mesh, devices)
    config_lib.check_batch(cfg, sharding.batch_shards(mesh))


def _name(given: Submit, pattern: str, instead: str, rule: str) -> str:
    """Return the job's name: --name, or what the last part of the directory makes of `pattern`."""
    if given.name:
        if not re.fullmatch(pattern, given.name):
            raise UserError(f"--name={given.name} must be {rule}")
        return given.name
    place = str(given.array or given.workdir).rstrip("/").rpartition("/")[2]
    if given.to is To.JOBSET:
        place = place.lower()
    made = re.sub(instead, "-", place)[:40].strip("-.")
    return made if re.fullmatch(pattern, made) else f"run-{made}".rstrip("-")


def script(given: Submit, run: Sequence[str], tasks: int | None = None) -> str:
    """Write the batch script of a run with these flags, or of a sweep of `tasks` points.

    srun ends with the highest status of its tasks. A status of 75 always puts the job back into
    the queue, that of a lost process while the job has been started again less than ten times.
    """
    rule = "letters, digits, dots, dashes and underscores, at most 64"
    name = _name(given, r"[A-Za-z0-9][\w.-]{0,63}", r"[^A-Za-z0-9_.-]+", rule)
    gpus, cores = given.gpus_per_node or 0, given.cpus_per_task
    each = 1 if tasks is not None else max(gpus, 1)
    # Of MIN-MAX sbatch takes no more nodes than its number of tasks needs: srun alone names it.
    spread = "-" in given.nodes
    asked = {
        "job-name": name,
        "nodes": given.nodes,
        "gpus-per-node": gpus,
        "ntasks-per-node": "" if spread else each,
        "cpus-per-task": "" if spread else cores,
        "mincpus": each * (cores or 1) if spread else "",
        "array": ""
        if tasks is None
        else f"0-{tasks - 1}" + f"%{given.at_once}" * bool(given.at_once),
        "partition": given.partition,
        "account": given.account,
        "time": given.time or "24:00:00",
        "signal": f"TERM@{given.grace}",
    }
    lines = [f"#SBATCH --{option}={value}" for option, value in asked.items() if value]
    python, job = [sys.executable, "-m", "vit_jax"], '"$SLURM_JOB_ID"'
    if tasks is None:
        command = shlex.join([*python, "train", *run])
    else:
        command = shlex.join([*python, "sweep", "run", str(given.array)])
        command += ' --index="$SLURM_ARRAY_TASK_ID"'
        job = '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"'
    # Since Slurm 22.05 srun does not take --cpus-per-task from the job.
    shape = f"--ntasks-per-node={each} " * spread + (f"--cpus-per-task={cores} " if cores else "")
    lost = " | ".join(map(str, _LOST))
    return "\n".join(
        [
            "#!/bin/bash",
            *lines,
            "#SBATCH --requeue --open-mode=append",
            f"cd {shlex.quote(os.getcwd())} || exit",
            f"srun --kill-on-bad-exit=1 {shape}\\",
            f"    {command}",
            "status=$?",
            "case $status in",
            f"{_STOPPED}) scontrol requeue {job} ;;",
            f'{lost}) [ "${{SLURM_RESTART_COUNT:-0}}" -lt {_RESTARTS} ] && '
            f"scontrol requeue {job} ;;",
            "esac",
            "exit $status",
            "",
        ]
    )


def _sbatch(text: str) -> str:
    """Submit a batch script, and return the job's number."""
    if shutil.which("sbatch") is None:
        raise UserError("sbatch is not on PATH; submit where Slurm is, or print the job by --print")
    done = subprocess.run(["sbatch", "--parsable"], input=text, capture_output=True, text=True)
    if done.returncode:
        said = "; ".join(line.removeprefix("sbatch: error: ") for line in done.stderr.splitlines())
        raise UserError(f"sbatch refused the job: {said}")
    return done.stdout.strip().partition(";")[0]


def jobset(given: Submit, run: Sequence[str]) -> dict[str, Any]:
    """Return the JobSet of a run with these flags, jobset.x-k8s.io/v1alpha2.

    A pod is a node, with one process. All pods are started again together: always after status 75
    or where the cluster took a pod away, and up to ten times after a lost process. Bad input ends
    the JobSet.

    Raises UserError: a directory that a pod would lose, or an image, volume or TPU that is none.
    """
    rule = "lower-case letters, digits and dashes, a letter first, at most 40"
    name = _name(given, r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?", "[^a-z0-9-]+", rule)
    if not re.fullmatch(r"\S+", given.image):
        raise UserError("which image? add --image=IMAGE, such as that of containers/Dockerfile")
    mount = _mount(given)
    nodes, slices, selector = int(given.nodes), 1, {}
    env: list[dict[str, Any]] = []
    if given.tpu:  # GKE tells the processes of each other
        slices, kind, shape = _slices(given.tpu)
        chips, each = math.prod(shape) * slices, slices * (nodes // slices)
        if each != nodes or chips % nodes:
            raise UserError(f"--nodes={nodes} cannot share the {chips} chips of --tpu={given.tpu}")
        selector = {
            "cloud.google.com/gke-tpu-accelerator": _TPUS[kind][0],
            "cloud.google.com/gke-tpu-topology": "x".join(map(str, shape)),
        }
        limits = {"google.com/tpu": chips // nodes}
    else:
        limits = {"nvidia.com/gpu": given.gpus_per_node} if given.gpus_per_node else {}
        env = _cluster(name, nodes)
    volumes = {"shared": {"persistentVolumeClaim": {"claimName": given.volume.partition(":")[0]}}}
    mounts = {"shared": mount} if mount else {}
    if (given.gpus_per_node or 0) > 1:  # NCCL's shared memory; a container has 64 MB of it
        volumes["memory"], mounts["memory"] = {"emptyDir": {"medium": "Memory"}}, "/dev/shm"
    container = {
        "name": "vit-jax",
        "image": given.image,
        "command": ["vit_jax"],
        # Kubernetes puts the value of a variable in the place of $(NAME).
        "args": [word.replace("$", "$$") for word in ["train", *run]],
        "env": env,
        "resources": {"limits": limits},
        "volumeMounts": [{"name": key, "mountPath": path} for key, path in mounts.items()],
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": given.grace,
        "nodeSelector": selector,
        "containers": [{key: value for key, value in container.items() if value}],
        "volumes": [{"name": key, **volumes[key]} for key in mounts],
    }
    codes = {"containerName": "vit-jax", "operator": "In", "values": sorted([*_BAD, _STOPPED])}
    taken = {"type": "DisruptionTarget", "status": "True"}
    job = {
        "completionMode": "Indexed",
        "completions": nodes // slices,
        "parallelism": nodes // slices,
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onExitCodes": codes},
                {"action": "FailJob", "onPodConditions": [taken]},
            ]
        },
        "template": {"spec": {key: value for key, value in pod.items() if value}},
    }
    bad = {
        "name": "badInput",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy"],
        "onJobFailureMessagePatterns": [f"exit code ({'|'.join(map(str, _BAD))}) "],
    }
    stopped = {
        "name": "stopped",
        "action": "RestartJobSetAndIgnoreMaxRestarts",
        "onJobFailureReasons": ["PodFailurePolicy"],
    }
    apart = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name} | ({"annotations": apart} if given.tpu else {}),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            # A pod that still runs holds the lock of the run's directory.
            "failurePolicy": {
                "maxRestarts": _RESTARTS,
                "restartStrategy": "BlockingRecreate",
                "rules": [bad, stopped],
            },
            "replicatedJobs": [{"name": "w", "replicas": slices, "template": {"spec": job}}],
        },
    }


def _cluster(name: str, nodes: int) -> list[dict[str, Any]]:
    """Return the variables that `startup.join_cluster` reads in a pod."""
    count = {"name": "JAX_NUM_PROCESSES", "value": str(nodes)}
    if nodes == 1:
        return [count]
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [
        {"name": "JAX_COORDINATOR_ADDRESS", "value": f"{name}-w-0-0.{name}:{_PORT}"},
        count,
        {"name": "JAX_PROCESS_ID", "valueFrom": {"fieldRef": {"fieldPath": index}}},
    ]


def _mount(given: Submit) -> str:
    """Return the path of --volume, "" without; raise UserError for a workdir in the container."""
    found = re.fullmatch(r"([a-z0-9](?:[-.a-z0-9]*[a-z0-9])?):(/\S*)", given.volume)
    if given.volume and not found:
        raise UserError(f"--volume={given.volume} must be CLAIM:/PATH, as shared:/mnt/shared")
    place, mount = os.path.normpath(str(given.workdir)), found[2] if found else ""
    bucket = re.match(r"(gs|s3):/", place)
    if not bucket and not (mount and Path(place).is_relative_to(mount)):
        where = f"below {mount}" if mount else "or lie on a volume, --volume=CLAIM:/mnt/shared"
        raise UserError(
            f"--workdir={given.workdir} would go with its pod; it must be gs://, s3:// {where}"
        )
    return mount


def _slices(tpu: str) -> tuple[int, str, list[int]]:
    """Read --tpu: the number of slices, the generation, the sides of a slice."""
    from vit_jax.cost import topology

    slices, kind, shape = topology.read(tpu, "--tpu")
    if kind not in _TPUS:
        raise UserError(f"--tpu={tpu} must be one of {', '.join(_TPUS)} with a shape, as v5e:4x4")
    return slices, kind, shape


main = options.verb(Submit, submit, read)
