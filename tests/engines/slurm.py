# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on this machine: two nodes, from the packages slurm-wlm and munge of Debian.

It needs no rights, no systemd, no cgroups and no file outside its folder. The nodes' names are
addresses, since jax looks for its coordinator at the name of the step's first node.
"""

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NODES = ("127.0.0.1", "127.0.0.2")
KILL_WAIT = 10  # seconds between SIGTERM and SIGKILL of a job that is preempted or cancelled
CPUS = 4  # of a node, whatever the machine has
_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={place}/munge/socket
CryptoType=crypto/munge
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.%n.log
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool.%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
ReturnToService=2
SlurmdParameters=config_overrides
KillWait={kill_wait}
MinJobAge=3600
FirstJobId={first}
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={nodes[0]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} State=UNKNOWN
NodeName={nodes[1]} NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES PriorityTier=1
PartitionName=urgent Nodes=ALL PriorityTier=10 PreemptMode=off
"""


def needed() -> None:
    """Skip a test where a program of Slurm or munge is missing."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [
        name
        for name in ("munged", "slurmctld", "slurmd", "sbatch", "srun")
        if shutil.which(name, path=path) is None
    ]
    if missing:
        pytest.skip(f"no {', '.join(missing)}: apt-get install slurm-wlm munge")


class Slurm:
    """A running Slurm; `env` leads Slurm's commands to it."""

    def __init__(self, place: Path) -> None:
        for name in ("state", "munge", *(f"spool.{node}" for node in NODES)):
            (place / name).mkdir(parents=True)
        (place / "munge").chmod(0o700)
        key = place / "munge" / "key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o600)
        self.place, self.conf = place, place / "slurm.conf"
        settings = {
            "host": socket.gethostname().partition(".")[0],
            "user": getpass.getuser(),
            "ports": _free_ports(3),
            "place": place,
            "nodes": NODES,
            "cpus": CPUS,
            "kill_wait": KILL_WAIT,
            "first": random.randrange(1, 4000),  # jax's ports follow from it
        }
        self.conf.write_text(_CONF.format(**settings))
        # The compiler of TPUs, where a test before used it, leaves the variables of a host.
        ours = {key: value for key, value in os.environ.items() if not key.startswith("TPU_")}
        self.env = {**ours, "SLURM_CONF": str(self.conf), "PYTHONPATH": str(ROOT)}
        self._daemons: list[subprocess.Popen] = []

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        place = self.place
        munge = [f"--{name}={place}/munge/{path}" for name, path in _MUNGE.items()]
        self._daemon("munged", "--force", "--foreground", "--num-threads=2", *munge)
        until(lambda: (place / "munge" / "socket").exists(), 20, self.logs)
        self._daemon("slurmctld", "-D", "-c", "-f", str(self.conf))
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node, "-f", str(self.conf))
        until(self._idle, 30, self.logs)

    def _daemon(self, name: str, *args: str) -> None:
        log = (self.place / f"{name}.{len(self._daemons)}.out").open("w")
        program = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
        command = [str(program), *args]
        self._daemons.append(subprocess.Popen(command, env=self.env, stdout=log, stderr=log))

    def _idle(self) -> bool:
        done = subprocess.run(
            ["sinfo", "-h", "-N", "-p", "main", "-t", "idle"],
            env=self.env,
            capture_output=True,
            text=True,
        )
        return len(done.stdout.splitlines()) == len(NODES)

    def logs(self) -> str:
        """Return the ends of what the daemons and the jobs have said."""
        files = [*sorted(self.place.glob("*.out")), *sorted(self.place.glob("*.log"))]
        return "\n".join(f"== {file.name}\n{file.read_text()[-2000:]}" for file in files)

    def ask(self, *command: str) -> str:
        """Run a command of Slurm's and return what it prints."""
        done = subprocess.run(
            command, env=self.env, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout.strip()

    def submit(self, script: str, *flags: str, **env: str) -> int:
        """Queue a script by sbatch; returns the job's number. `output` is what it prints."""
        file = self.place / "script.sh"
        file.write_text(script)
        before, self.env = self.env, self.env | env
        try:
            number = self.ask(
                *("sbatch", "--parsable", f"--output={self.place}/job-%A_%a.txt", *flags),
                str(file),
            )
        finally:
            self.env = before
        return int(number)

    def output(self, job: int) -> str:
        """Return what a job and the tasks of its array have printed."""
        files = sorted(self.place.glob(f"job-{job}_*.txt"))
        return "".join(file.read_text() for file in files)

    def about(self, job: int | str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job: JobState, ExitCode, Restarts."""
        words = self.ask("scontrol", "-o", "show", "job", str(job)).split()
        return dict(word.partition("=")[::2] for word in words if "=" in word)

    def wait(self, job: int | str, *states: str, seconds: float = 120) -> dict[str, str]:
        """Wait until a job is in one of the states."""
        until(
            lambda: self.about(job)["JobState"] in states,
            seconds,
            lambda: f"{self.about(job)}\n{self.output(int(str(job).partition('_')[0]))}",
        )
        return self.about(job)

    def returned(self, job: int | str, restarts: int, seconds: float = 60) -> None:
        """Wait until a job is back in the queue."""

        def state() -> tuple[str, ...]:
            about = self.about(job)
            return about["Restarts"], about["JobState"], about["Reason"]

        until(
            lambda: state() == (str(restarts), "PENDING", "BeginTime"),
            seconds,
            lambda: f"{self.about(job)}\n{self.output(int(str(job).partition('_')[0]))}",
        )

    def release(self, job: int | str) -> None:
        """Let a job that is back in the queue start at once, not in two minutes."""
        time.sleep(2.5)  # a node starts no job again in the second in which it ended it
        self.ask("scontrol", "update", f"job={job}", "StartTime=now")
        until(lambda: self.about(job)["JobState"] != "PENDING", 20, lambda: str(self.about(job)))

    def signal(self, job: int, name: str) -> None:
        """Send a signal to all tasks of a job's steps, and not to its script."""
        self.ask("scancel", f"--signal={name}", str(job))

    def tasks(self, job: int) -> dict[int, int]:
        """Return the process of each task of a job's steps, by the task's number."""
        found = {}
        wanted = {f"SLURM_CONF={self.conf}", f"SLURM_JOB_ID={job}"}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                words = set((entry / "environ").read_text(errors="replace").split("\0"))
                if not wanted <= words or not (entry / "comm").read_text().startswith("python"):
                    continue
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
                if (Path("/proc") / parent / "comm").read_text().startswith("slurmstepd"):
                    (rank,) = [w.partition("=")[2] for w in words if w.startswith("SLURM_PROCID=")]
                    found[int(rank)] = int(entry.name)
        return found

    def close(self) -> None:
        """Cancel all jobs and end the daemons."""
        cancel = ["scancel", "--full", "--signal=KILL", "-u", getpass.getuser()]
        subprocess.run(cancel, env=self.env, capture_output=True, timeout=60)
        subprocess.run(cancel[:1] + cancel[3:], env=self.env, capture_output=True, timeout=60)
        with contextlib.suppress(AssertionError):
            until(lambda: not self.ask("squeue", "-h", "-t", "R,CG"), 20, self.logs)
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()


_MUNGE = {
    "socket": "socket",
    "key-file": "key",
    "pid-file": "pid",
    "seed-file": "seed",
    "log-file": "log",
}


@contextlib.contextmanager
def running(place: Path) -> Iterator[Slurm]:
    """Start Slurm in a folder, and end it; skips a test where it cannot be had."""
    needed()
    slurm = Slurm(place)
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.close()


def until(true: Callable[[], bool], seconds: float, why: Callable[[], str]) -> None:
    """Wait until something is true. Raises AssertionError: it does not become so; `why` is said."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, why()
        time.sleep(0.1)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
