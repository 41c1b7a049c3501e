# SPDX-License-Identifier: Apache-2.0
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from vit_jax.process import startup

ROOT = Path(__file__).parents[3]

# What a process keeps of one program, and where.
PROGRAM = """
import jax
from vit_jax.process import startup
startup.keep_programs()
print(jax.config.jax_compilation_cache_dir)
jax.jit(lambda x: x * 3 + 1)(2.0)
"""

# The pages that a thread of its own touches first, of 64 MiB that it has had before.
HEAP = """
import ctypes, resource, threading
from vit_jax.process import startup
startup.keep_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def touch():
    for i in range(2):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        block = ctypes.c_void_p(libc.malloc(2**26))
        ctypes.memset(block, i, 2**26)
        libc.free(block)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
thread = threading.Thread(target=touch)
thread.start()
thread.join()
"""

# Sums over eight virtual devices, started faster than they are done.
COLLECTIVES = """
import jax, numpy as np
from vit_jax.devices import sharding
from vit_jax.process import startup
from vit_jax.checkpoints.manifest import digests
startup.configure()
mesh = sharding.make_mesh(sharding.MeshConfig(data=1, fsdp=8))
rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("fsdp"))
arrays = {str(i): jax.device_put(np.full((256, 256), i, np.float32), rows) for i in range(60)}
for _ in range(5):
    print(len(digests(arrays)))
"""

# `fit` from Python, as far as the data that are not there.
FROM_PYTHON = """
import os
import vit_jax
for shards in (0, 8):
    try:
        vit_jax.fit("vit_mu_digits", "x", {"data.name": "none", "mesh.reproducible": shards})
    except vit_jax.errors.UserError:
        print(os.environ["PJRT_NPROC"])
"""

PLUGINS = """
import jax
from vit_jax.process import startup
startup.configure()
print(jax.devices()[0].platform)
"""


def _python(*args, **environment):
    """Run Python without the settings of the tests' own cache."""
    kept = {k: v for k, v in os.environ.items() if "CACHE" not in k}
    return subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        env=kept | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def test_memory_of_a_step_is_kept_for_the_next():
    # LD_PRELOAD: CI's tests have another library's.
    first, second = map(int, _python("-c", HEAP, LD_PRELOAD="").stdout.split())
    assert first >= 2**26 // 2**21  # pages of 2 MiB at most
    assert second < 16
    # Whoever tunes glibc is let be.
    tuned = _python(
        "-c",
        HEAP,
        LD_PRELOAD="",
        MALLOC_TRIM_THRESHOLD_="131072",
        MALLOC_MMAP_THRESHOLD_="131072",
    )
    assert min(map(int, tuned.stdout.split())) >= 2**26 // 2**21


@pytest.mark.parametrize(
    "asked",
    [
        {"JAX_NUM_CPU_DEVICES": "8"},
        {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_NUM_CPU_DEVICES": "-1"},
    ],
)
def test_virtual_devices_do_not_wait_for_each_others_threads(asked, monkeypatch):
    monkeypatch.delenv("PJRT_NPROC")  # which the tests set
    assert _python("-c", COLLECTIVES, **asked).stdout == 5 * "60\n"


def test_a_call_from_python_starts_as_the_command_does(monkeypatch):
    monkeypatch.delenv("PJRT_NPROC")
    assert _python("-c", FROM_PYTHON, JAX_NUM_CPU_DEVICES="8").stdout == "32\n64\n"


@pytest.mark.skipif(bool(startup.device_files()), reason="this machine has an accelerator")
def test_compilers_without_their_devices_say_nothing():
    if not any(importlib.util.find_spec(name) for name in ("libtpu", "jax_cuda13_plugin")):
        pytest.skip('no compiler is here: pip install -e ".[aot-tpu]"')
    done = _python("-c", PLUGINS, JAX_PLATFORMS="")
    assert (done.stdout, done.stderr) == ("cpu\n", "")


def test_programs_are_kept_below_the_users_cache_directory(tmp_path):
    done = _python("-c", PROGRAM, XDG_CACHE_HOME=str(tmp_path))
    kept = tmp_path / "vit_jax" / "jax"
    assert (done.stdout, done.stderr) == (f"{kept}\n", "")
    # However quick it was to compile.
    assert [path.name.split("-")[0] for path in kept.glob("*-cache")] == ["jit__lambda"]


def test_jax_own_setting_of_the_directory_wins(tmp_path):
    own = tmp_path / "own"
    done = _python("-c", PROGRAM, XDG_CACHE_HOME=str(tmp_path), JAX_COMPILATION_CACHE_DIR=str(own))
    assert done.stdout == f"{own}\n"
    assert len(list(own.glob("*-cache"))) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own"]


def test_a_home_that_cannot_be_written_is_one_line_of_warning(tmp_path):
    (tmp_path / "file").write_text("")
    done = _python("-c", PROGRAM, XDG_CACHE_HOME=str(tmp_path / "file"))
    assert done.stdout == "None\n"
    assert done.stderr == (
        "warning: compiled programs cannot be kept (Not a directory); every start compiles anew. "
        "Set JAX_COMPILATION_CACHE_DIR to a directory that can be written\n"
    )


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["main.py", "--help"], 0),
        (["main.py", "--config=configs/vit_mu_digts.py"], 2),
        (["-m", "vit_jax", "--help"], 0),
        (["-m", "vit_jax", "predct"], 2),
    ],
)
def test_help_and_mistyped_names_are_answered_without_jax(command, status):
    code = (
        "import runpy, sys\n"
        "try:\n"
        "    if sys.argv[1] == '-m':\n"
        "        sys.argv[1:] = sys.argv[2:]\n"
        "        runpy.run_module(sys.argv.pop(1), run_name='__main__')\n"
        "    else:\n"
        "        runpy.run_path(sys.argv.pop(1), run_name='__main__')\n"
        "except SystemExit as done:\n"
        "    print(done.code, 'jax' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)\n"
    )
    told = _python("-c", code, *command).stderr.splitlines()
    assert told[-1] == f"{status} False False"
