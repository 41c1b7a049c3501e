# SPDX-License-Identifier: Apache-2.0
"""`submit`: its script asks for what was asked, its JobSet is one, and mistakes are one line."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from vit_jax.__main__ import main
from vit_jax.checkpoints.checkpointer import CorruptCheckpoints
from vit_jax.cli import submit
from vit_jax.errors import DataError, NonFinite
from vit_jax.process.preemption import INTERRUPTED
from vit_jax.train.health.watchdog import HUNG

ROOT = Path(__file__).parents[3]
RUN = f"--config={ROOT}/configs/vit_l16_imagenet.py"
SCHEMA = ROOT / "tests" / "golden" / "jobset.schema.json"
NASTY = """a b';$(touch x)`touch y`"\\ #: {c: d} &e\n- é"""


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no sbatch."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    status = main(["vit_jax", "submit", *words])
    out, err = capsys.readouterr()
    assert (status, err) == (0, ""), err
    return out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    status = main(["vit_jax", "submit", *words])
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), (out, err)
    return err


def strictly(schema: Any) -> Any:
    """Allow the named fields alone, as `kubectl apply` does, and numbers where text may stand."""
    if isinstance(schema, list):
        return [strictly(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strictly(value) for key, value in schema.items()}
    if "properties" in schema and schema.get("type") == "object":
        made["additionalProperties"] = False
    return made


def jobset(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """Return a JobSet that the published schema allows, read back from what is printed."""
    made = yaml.safe_load(said(capsys, *words, "--to=jobset", "--image=registry/vit_jax:1"))
    schema = strictly(json.loads(SCHEMA.read_text()))
    del schema["properties"]["metadata"]  # which Kubernetes itself describes
    jsonschema.validate({k: v for k, v in made.items() if k != "metadata"}, schema)
    assert (made["apiVersion"], made["kind"]) == ("jobset.x-k8s.io/v1alpha2", "JobSet")
    return made


def options_of(text: str) -> dict[str, str]:
    """Read the options with a value that a script asks sbatch for."""
    return dict(re.findall(r"^#SBATCH --([\w-]+)=(\S+)$", text, re.MULTILINE))


def test_the_statuses_are_those_of_a_run() -> None:
    bad = (DataError, CorruptCheckpoints, NonFinite)
    assert tuple(kind.status for kind in bad) == submit._BAD
    assert (submit._STOPPED, submit._LOST[0]) == (INTERRUPTED, HUNG)


def test_the_script_asks_for_what_was_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = [RUN, "--workdir=/mnt/runs/l16", "--config.mesh.fsdp=8", "--config.seed", "3"]
    words = ["--nodes=4", "--gpus-per-node", "8", "--cpus_per_task=12", "--partition=gpu,fat"]
    words += ["--account=me", "--time=2-12", "--grace=300", "--print"]
    text = said(capsys, *run, *words)
    asked = options_of(text)
    assert asked == {
        "job-name": "l16",
        "nodes": "4",
        "ntasks-per-node": "8",
        "gpus-per-node": "8",
        "cpus-per-task": "12",
        "partition": "gpu,fat",
        "account": "me",
        "time": "2-12",
        "signal": "TERM@300",
    }
    assert text.startswith("#!/bin/bash\n#SBATCH ")
    assert "#SBATCH --requeue --open-mode=append\n" in text
    assert f"\ncd {tmp_path} || exit\n" in text
    (line,) = re.findall(r"^srun .*$", text.replace("\\\n", ""), re.MULTILINE)
    srun, kill, cores, _, *rest = shlex.split(line)
    assert (srun, kill, cores) == ("srun", "--kill-on-bad-exit=1", "--cpus-per-task=12")
    assert rest == ["-m", "vit_jax", "train", *run]
    # As many nodes as are free: sbatch would take the fewest that a number of tasks needs.
    text = said(capsys, *run, "--nodes=1-2", "--gpus-per-node=8", "--cpus-per-task=12", "--print")
    assert "\n#SBATCH --nodes=1-2\n#SBATCH --gpus-per-node=8\n#SBATCH --mincpus=96\n" in text
    assert " --ntasks-per-node=8 --cpus-per-task=12 \\\n" in text
    assert "SBATCH --ntasks" not in text
    # Where nothing is asked for, nothing is said, and a node without GPUs has one task.
    text = said(capsys, RUN, "--workdir=/mnt/runs/l16", "--gpus-per-node=0", "--print")
    asked = options_of(text)
    assert asked == {
        "job-name": "l16",
        "nodes": "1",
        "ntasks-per-node": "1",
        "time": "24:00:00",
        "signal": "TERM@120",
    }


def test_a_sweep_is_an_array_of_its_points(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    point = {
        "run": "0a1b2c3d4e",
        "name": "",
        "config": "c.py",
        "overrides": {},
        "metric": "val/loss",
    }
    point |= {"params": 1, "flops": 1.0, "examples": 1, "tokens": 1, "steps": 1, "seconds": None}
    place = tmp_path / "a sweep"
    place.mkdir()
    lines = [json.dumps(point | {"run": f"{i}a1b2c3d4e"}) for i in range(3)]
    (place / "manifest.jsonl").write_text("\n".join(lines) + "\n")
    text = said(capsys, f"--array={place}", "--at-once=2", "--gpus-per-node=4", "--print")
    assert "\n#SBATCH --array=0-2%2\n" in text
    assert "\n#SBATCH --job-name=a-sweep\n" in text
    assert "\n#SBATCH --gpus-per-node=4\n#SBATCH --ntasks-per-node=1\n" in text
    command = f"-m vit_jax sweep run '{place}' --index=\"$SLURM_ARRAY_TASK_ID\"\n"
    assert command in text
    assert '"${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"' in text
    assert '"$SLURM_JOB_ID"' not in text  # which names the whole array in its last task
    assert "drop '--config.seed=1'" in refused(
        capsys, f"--array={place}", "--gpus-per-node=4", "--config.seed=1"
    )
    assert "a point of a sweep has one node" in refused(
        capsys, f"--array={place}", "--gpus-per-node=4", "--nodes=2"
    )
    assert "at_once" not in said(capsys, f"--array={place}", "--gpus-per-node=0", "--print")


def test_a_mistake_is_one_line_before_the_job_waits(capsys: pytest.CaptureFixture[str]) -> None:
    run = [RUN, "--workdir=/mnt/l16"]
    node = [*run, "--gpus-per-node=8"]
    pods = [*node, "--to=jobset"]
    claim = [*pods, "--image=i", "--volume=c:/mnt"]
    tpus = [*run, "--to=jobset", "--image=i", "--volume=c:/mnt"]
    for words, expected in (
        (run, "add --gpus_per_node=N, 0 for CPUs alone"),
        ([RUN, "--gpus-per-node=8"], "where to? add --workdir=DIR"),
        ([], "which run? add --config=FILE"),
        ([*node, "--node=4"], "did you mean '--nodes'"),
        ([*node, "--config.optim.lrr=1"], "did you mean --config.optim.lr?"),
        ([*node, "--nodes=four"], "--nodes=four must be a number, or MIN-MAX"),
        ([*node, "--nodes=4-2"], "the smaller first"),
        ([*node, "--nodes=3"], "data.batch_size=4096 cannot be split over 24 devices"),
        ([*node, "--config.mesh.fsdp=16"], "does not fit 8 device(s)"),
        ([*node, "--time=1 day"], "--time=1 day must be MINUTES"),
        ([*node, "--partition=a\n#SBATCH --wrap=b"], "must have letters, digits"),
        ([*node, "--account=a b"], "must have letters, digits"),
        ([*node, "--name=a\nb"], "must be letters, digits, dots"),
        ([*node, "--at-once=2"], "--at_once is for --array=DIR"),
        ([*node, "--image=i"], "--image does nothing with --to=slurm"),
        (node, "sbatch is not on PATH; submit where Slurm is, or print the job by --print"),
        (pods, "which image? add --image=IMAGE"),
        ([*pods, "--image=i", "--time=3"], "--time does nothing with --to=jobset"),
        ([*pods, "--image=i"], "would go with its pod; it must be gs://, s3:// or lie on a volume"),
        ([*pods, "--image=i", "--volume=c:/data"], "it must be gs://, s3:// below /data"),
        ([*pods, "--image=i", "--volume=c:mnt"], "must be CLAIM:/PATH"),
        ([*claim, "--nodes=1-2"], "a JobSet has a fixed number"),
        ([*claim, "--name=Upper"], "must be lower-case letters"),
        ([*claim, "--tpu=v5e:4x4"], "--gpus_per_node and --tpu: choose one"),
        ([*tpus, "--tpu=h100:8"], "must be one of v4, v5e"),
        ([*tpus, "--tpu=v5e:4x4x4"], "a v5e slice has 2 sides"),
        ([*tpus, "--tpu=v5e:4x4", "--nodes=3"], "cannot share the 16 chips"),
        ([*tpus, "--tpu=2xv5e:4x4", "--nodes=1"], "cannot share the 32 chips"),
    ):
        assert expected in refused(capsys, *words), words


def test_a_jobset_starts_the_processes_of_a_cluster(capsys: pytest.CaptureFixture[str]) -> None:
    run = [RUN, "--workdir=/mnt/shared/runs/My_L16", "--config.mesh.fsdp=8"]
    words = ["--nodes=4", "--gpus-per-node=8", "--volume=nfs:/mnt/shared", "--grace=60"]
    made = jobset(capsys, *run, *words)
    name = made["metadata"]["name"]
    assert name == "my-l16"
    (replicated,) = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 4, 4)
    env = {row["name"]: row.get("value") for row in container["env"]}
    # JobSet's name of a pod: JOBSET-REPLICATEDJOB-JOB-POD, in a service of the JobSet's name.
    assert env["JAX_COORDINATOR_ADDRESS"] == f"{name}-{replicated['name']}-0-0.{name}:8476"
    assert env["JAX_NUM_PROCESSES"] == "4"
    assert container["env"][2]["valueFrom"]["fieldRef"]["fieldPath"] == (
        "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    )
    assert made["spec"]["network"]["publishNotReadyAddresses"]  # process 0 waits for the others
    assert container["command"] == ["vit_jax"]
    assert container["args"] == ["train", *run]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    mounts = {row["name"]: row["mountPath"] for row in container["volumeMounts"]}
    assert mounts == {"shared": "/mnt/shared", "memory": "/dev/shm"}
    assert [row["name"] for row in pod["volumes"]] == list(mounts)
    assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "nfs"}
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 60)
    # A pod of its own asks nobody for others; one of CPUs has no limits.
    alone = jobset(capsys, RUN, "--workdir=s3://b/l16", "--gpus-per-node=0", "--name=x")
    (container,) = alone["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    assert container["env"] == [{"name": "JAX_NUM_PROCESSES", "value": "1"}]
    assert container["resources"]["limits"] == {}
    assert "volumeMounts" not in container


def test_a_jobset_of_tpus_names_their_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    made = jobset(capsys, RUN, "--workdir=gs://b/l16", "--tpu=2xv5e:4x8", "--nodes=16")
    assert "alpha.jobset.sigs.k8s.io/exclusive-topology" in made["metadata"]["annotations"]
    (replicated,) = made["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    assert (replicated["replicas"], job["completions"], job["parallelism"]) == (2, 8, 8)
    assert container["resources"]["limits"] == {"google.com/tpu": 4}
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
        "cloud.google.com/gke-tpu-topology": "4x8",
    }
    assert "env" not in container  # GKE's, which startup.join_cluster finds


def test_a_jobset_restarts_by_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    """Play the controllers' part, by the rules as JobSet and Job document them."""
    made = jobset(capsys, RUN, "--workdir=gs://b/l16", "--gpus-per-node=8")
    policy = made["spec"]["failurePolicy"]
    job = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert job["backoffLimit"] == 0
    assert (policy["maxRestarts"], policy["restartStrategy"]) == (10, "BlockingRecreate")

    (container,) = job["template"]["spec"]["containers"]

    def action(status: int | None) -> str:
        """Return what follows a pod that ended by itself, or that the cluster took away."""
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        for i, rule in enumerate(job["podFailurePolicy"]["rules"]):
            if status is None:
                what = f"Pod a/l16-w-0-0-x1y2z has condition {rule.get('onPodConditions')}"
                met = rule.get("onPodConditions") == [
                    {"type": "DisruptionTarget", "status": "True"}
                ]
            else:
                codes = rule.get("onExitCodes", {"containerName": container["name"], "values": []})
                assert codes["containerName"] == container["name"]
                what = f"Container vit-jax for pod a/l16-w-0-0-x1y2z failed with exit code {status}"
                met = status in codes["values"]
            if met:
                reason = "PodFailurePolicy"
                message = f"{what} matching {rule['action']} rule at index {i}"
                break
        for rule in policy["rules"]:
            patterns = rule.get("onJobFailureMessagePatterns", [""])
            met = any(re.search(pattern, message) for pattern in patterns)
            if reason in rule["onJobFailureReasons"] and met:
                return rule["action"]
        return "RestartJobSet"

    again, ends = "RestartJobSetAndIgnoreMaxRestarts", "FailJobSet"
    expected = {75: again, None: again, 71: "RestartJobSet", 134: "RestartJobSet"}
    expected |= {137: "RestartJobSet", 2: "RestartJobSet", 65: ends, 66: ends, 70: ends}
    assert {status: action(status) for status in expected} == expected


def test_names_from_outside_stay_words(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / f"{NASTY.replace(':', '')}.py"  # a colon begins a config's argument
    file.write_text((ROOT / "configs" / "vit_l16_imagenet.py").read_text())
    run = [f"--config={file}", f"--workdir=/mnt/{NASTY}", f"--config.data.data_dir={NASTY}"]
    text = said(capsys, *run, "--gpus-per-node=8", "--print")
    head, _, body = text.partition("\ncd ")
    assert all(line.startswith("#") for line in head.splitlines())
    assert re.search(r"^#SBATCH --job-name=[\w.-]+$", head, re.MULTILINE)
    words = shlex.split(body, comments=True)
    assert words[words.index("train") + 1 :][:3] == run
    made = jobset(capsys, *run, "--gpus-per-node=8", "--volume=c:/mnt")
    (container,) = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"][
        "containers"
    ]
    # Kubernetes reads $(NAME), and $$ as $.
    assert [word.replace("$$", "$") for word in container["args"]] == ["train", *run]
    assert not any(re.search(r"(?<!\$)(\$\$)*\$\(", word) for word in container["args"])
    assert re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", made["metadata"]["name"])
