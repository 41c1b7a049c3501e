# SPDX-License-Identifier: Apache-2.0
"""The steps of containers/Dockerfile make an image: they are executed in a fresh root.

No daemon is needed. The root is this machine's own under an empty layer that takes all writes, with
this process's Python, without this repository. Packages of the lock that are installed here are
there already, which their real installation would take a minute for.
"""

import importlib.metadata
import os
import re
import shlex
import shutil
import stat
import string
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement

from vit_jax.version import __version__

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "containers" / "Dockerfile"
DEFINITION = ROOT / "containers" / "vit_jax.def"
# The directories of an image of Debian.
DEBIAN = {"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt"}
DEBIAN |= {"opt", "proc", "root", "run", "sbin", "srv", "sys", "tmp", "usr", "var"}


class Step(NamedTuple):
    """An instruction of a Dockerfile."""

    word: str
    text: str


def steps() -> list[Step]:
    """Read the Dockerfile."""
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [Step(*line.split(maxsplit=1)) for line in text.splitlines() if line]


def commands() -> list[str]:
    """Return what RUN runs, without BuildKit's caches."""
    return [re.sub(r"--mount=\S+ ", "", step.text) for step in steps() if step.word == "RUN"]


def copied() -> dict[str, str]:
    """Return where each file and folder of the repository goes."""
    found, place = {}, PurePosixPath("/")
    for step in steps():
        if step.word == "WORKDIR":
            place /= step.text
        if step.word == "COPY":
            *sources, target = step.text.split()
            for source in sources:
                inside = place / target / (source if target.endswith("/") else "")
                found[source] = str(inside)
    return found


def allowed() -> list[str]:
    """Return what .dockerignore lets through, of a list that begins with all."""
    text = DOCKERFILE.with_name("Dockerfile.dockerignore").read_text()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert (lines[0], lines[-1]) == ("*", "**/__pycache__")
    assert all(line.startswith("!") for line in lines[1:-1])
    return [line[1:] for line in lines[1:-1]]


def test_the_image_takes_what_it_needs_of_the_repository() -> None:
    assert sorted(copied()) == sorted(allowed())
    assert all((ROOT / source).exists() for source in copied())


def test_the_definition_for_apptainer_has_the_same_steps() -> None:
    text = DEFINITION.read_text()
    parts = dict(re.findall(r"^%(\w+)\n((?:(?:    .*)?\n)*)", text, re.MULTILINE))
    files = dict(line.split() for line in parts["files"].splitlines() if line)
    assert files == copied()
    post = " ".join(parts["post"].split())
    for command in commands():
        if not command.startswith("useradd"):  # Apptainer runs as the one who starts it
            assert " ".join(command.split()) in post, command
    arguments = dict(line.strip().split("=") for line in parts["arguments"].splitlines() if line)
    assert arguments == dict(step.text.split("=") for step in steps() if step.word == "ARG")
    base = next(step.text for step in steps() if step.word == "FROM")
    assert f"From: {base.replace('${PYTHON}', '{{ PYTHON }}')}\n" in text
    (entry,) = [step.text for step in steps() if step.word == "ENTRYPOINT"]
    assert parts["runscript"].strip() == f'exec {entry.strip("[]").strip(chr(34))} "$@"'


def test_each_hardware_has_its_packages() -> None:
    (case,) = [command for command in commands() if "$HARDWARE" in command]
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for hardware in ("cpu", "gpu", "tpu", "npu"):
        script = f'pip() {{ printf "%s\\n" "$@"; }}\n{case}'
        env = {"HARDWARE": hardware, "PATH": os.environ["PATH"]}
        done = subprocess.run(["sh", "-c", script], env=env, capture_output=True, text=True)
        wanted = [Requirement(line) for line in extras.get(hardware, ())]
        given = [Requirement(line) for line in done.stdout.splitlines()[1:]]
        assert [(each.name, each.extras) for each in given] == [
            (each.name, each.extras) for each in wanted
        ]
        assert done.returncode == (2 if hardware == "npu" else 0)
        assert done.stderr == ("HARDWARE=npu must be cpu, gpu or tpu\n" * (hardware == "npu"))


def locked_here() -> list[str]:
    """Return what the lock's packages have in the site-packages of this environment."""
    text = re.sub(r" \\\n.*", "", (ROOT / "requirements.txt").read_text())
    found = set()
    for line in text.splitlines():
        if "==" not in line or line.startswith((" ", "#")):
            continue
        package = Requirement(line.rstrip(" \\"))
        if package.marker is None or package.marker.evaluate():
            try:
                files = importlib.metadata.files(package.name) or []
            except importlib.metadata.PackageNotFoundError:
                continue  # the step installs it
            found |= {file.parts[0] for file in files}
    return sorted(found - {"..", "__pycache__"})


def in_fresh_root(place: Path) -> str:
    """Write the shell script that makes a root in `place` and executes the Dockerfile in it.

    Its mounts are gone when the namespace of its `unshare` is.
    """
    root, base = place / "root", Path(sys.base_prefix)
    lib = sysconfig.get_path("purelib", vars={"base": "/opt/venv"})
    site = f"/opt/venv/lib/{Path(lib).parent.name}/site-packages"
    lines = [
        f"mkdir {place}/work {root}",
        f"mount -t overlay overlay -o lowerdir=/,upperdir={place}/up,workdir={place}/work {root}"
        " || exit 77",
        f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
        f"mkdir -p {root}{base} {root}/opt/here",
        f"[ ! -e {root}{ROOT} ] || mount -t tmpfs tmpfs {root}{ROOT}",
        f"mount --bind {base} {root}{base}",
        f"mount --bind {sysconfig.get_path('purelib')} {root}/opt/here",
        *(f"mount --rbind /{name} {root}/{name}" for name in ("proc", "dev", "sys")),
        # The image of python:slim has no other user, and this Python may lie in root's home.
        f"printf 'root:x:0:0::/root:/bin/sh\\n' > {root}/etc/passwd",
        f"printf 'root:x:0:\\n' > {root}/etc/group",
        f"rm -f {root}/etc/shadow {root}/etc/gshadow",
        *(f"chmod a+x {root}{folder}" for folder in base.parents if folder != Path("/")),
        f"[ -e {base}/bin/python ] || ln -sf {sys._base_executable} {root}/usr/local/bin/python",
    ]
    env = {"HARDWARE": "cpu", "PYTHON": "3.12", "HOME": "/root"}
    env["PATH"] = f"{base}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    here, user, tried = PurePosixPath("/"), "root", []
    expand = lambda text: string.Template(text).substitute(env)  # noqa: E731

    def inside(command: str) -> str:
        variables = [f"{name}={value}" for name, value in env.items()]
        words = ["chroot", f"--userspec={user}", str(root), "env", "-i", *variables, "sh", "-c"]
        return shlex.join([*words, f"cd {here} && {{ {command}\n}}"])

    for step in steps():
        tried.append(step.word)
        if step.word == "ARG":
            name, _, value = step.text.partition("=")
            assert env[name] == value or name == "PYTHON"
        elif step.word == "ENV":
            for word in shlex.split(step.text):
                name, _, value = word.partition("=")
                env[name] = expand(value)
        elif step.word == "WORKDIR":
            here /= expand(step.text)
            lines.append(f"mkdir -p {root}{here}")
        elif step.word == "COPY":
            for source in step.text.split()[:-1]:
                lines.append(f"cp -r {place}/context/{source} {root}{copied()[source]}")
        elif step.word == "USER":
            user = expand(step.text)
            env["HOME"] = f"/home/{user}"
        elif step.word == "RUN":
            command = re.sub(r"--mount=\S+ ", "", step.text)
            lines.append(f"echo; echo {shlex.quote(f'RUN {command}')}; {inside(command)}")
            if "-m venv" in command:
                lines.append(
                    f"for each in {' '.join(map(shlex.quote, locked_here()))}; do"
                    f' ln -s "/opt/here/$each" "{root}{site}/$each"; done'
                )
        else:
            assert step.word in ("FROM", "ENTRYPOINT"), f"{step.word} is executed by nothing here"
    assert {"RUN", "COPY", "USER"} <= set(tried)
    # And what the image is for.
    lines += [f"echo; echo IMAGE; {inside('id -u; pwd; command -v vit_jax')}"]
    tried_out = ("vit_jax --version", "vit_jax configs > here", "grep -c vit_mu_digits here")
    lines += map(inside, (*tried_out, "vit_jax doctor"))
    return "\n".join(["set -e", *lines])


def test_the_dockerfile_makes_an_image(tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a fresh root needs root and unshare")
    (tmp_path / "up").mkdir()
    for name in set(os.listdir("/")) - DEBIAN:  # overlayfs's mark of what is not there
        os.mknod(tmp_path / "up" / name, stat.S_IFCHR)
    for source in allowed():
        ignore = shutil.ignore_patterns("__pycache__")
        target = tmp_path / "context" / source
        target.parent.mkdir(exist_ok=True)
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, target, ignore=ignore)
        else:
            shutil.copy(ROOT / source, target)
    words = ["unshare", "--mount", "--propagation=private", "bash", "-c", in_fresh_root(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    if done.returncode == 77:
        pytest.skip(f"no fresh root here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
    user, here, program, version, listed, *doctor = done.stdout.partition("\nIMAGE\n")[
        2
    ].splitlines()
    assert (user, here, program) == ("1000", "/work", "/opt/venv/bin/vit_jax")
    assert version == f"vitjax {__version__}"
    assert listed == "1"
    assert re.match(r"\d+ ok, \d+ warning, 0 broken", doctor[-1]), doctor
