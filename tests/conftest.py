# SPDX-License-Identifier: Apache-2.0
"""Every test sees 8 virtual CPU devices, strict rank promotion and one shared compilation cache."""

import gc
import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.browser import chrome  # noqa: F401  (a fixture of every test)
from tests.bucket import Bucket, forget

CACHE = Path(__file__).parents[1] / ".cache" / "jax"

# Environment, not jax.config: processes that tests start inherit it.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
# Tests compile far more than they compute: of XLA's CPU passes the quick ones, for a third of the
# time. The fusion emitters alone would double it; from jaxlib 0.11.1 on they cannot be left out,
# and a flag that XLA does not know ends the process. The last two are those that a command sets:
# XLA reads them once, and a test that compiles before a command is called in its process would
# leave that command with other bits than the commands in processes of their own.
_FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_opt_preset=CPU_OPT_PRESET_FAST_COMPILE"
    " --xla_cpu_parallel_codegen_split_count=1 --xla_cpu_prefer_vector_width=512"
    " --xla_cpu_enable_concurrency_optimized_scheduler=false"
)
if version("jaxlib").startswith(("0.10.", "0.11.0")):
    _FLAGS += " --xla_cpu_use_fusion_emitters=false"
os.environ.setdefault("XLA_FLAGS", _FLAGS)
if version("jaxlib") == "0.10.0":  # it logs errors for each program that it reads from the cache
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# The lines of Python behind each operation of a program take a tenth of the time to lower it.
os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
# A collective of 8 devices blocks a thread each; where two run at once, a pool of 8 deadlocks.
os.environ.setdefault("PJRT_NPROC", "32")

# A shell's background job ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tracing makes many objects and few circles of them, for which Python looks after each 700 new ones
# by default: 6 % of the time of a test that traces.
gc.set_threshold(20_000, 20, 20)
MOST_RESIDENT = 3 * 2**30  # bytes, of each of two workers
# What is forgotten leaves its room to what follows, and little of it to the system: by how much a
# worker grows before it forgets again.
MORE_RESIDENT = 2**29


class _ConfigureJax:
    """Configure jax once it is imported: files that need no jax start half a second sooner."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        if name != "jax":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            module.config.update("jax_num_cpu_devices", 8)
            module.config.update("jax_numpy_rank_promotion", "raise")

        spec.loader.exec_module = exec_module
        return spec


assert "jax" not in sys.modules
sys.meta_path.insert(0, _ConfigureJax())


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    """An emulated bucket, to which the environment sends the clients of gs:// and s3://."""
    with Bucket() as running, pytest.MonkeyPatch.context() as patch:
        for key, value in running.env.items():
            patch.setenv(key, value)
        yield running
    forget()


def needs_s3fs() -> None:
    """Skip a test where s3fs, of locks/parity.txt, is not there or not for this aiohttp."""
    pytest.importorskip("s3fs", exc_type=ImportError)


@pytest.fixture(scope="session")
def _allowed() -> list[int]:
    return [MOST_RESIDENT]


@pytest.fixture(scope="module", autouse=True)
def _forget_programs(_allowed: list[int]) -> Iterator[None]:
    # Thousands of compiled programs are some GB, which Python's collector would walk again and
    # again: frozen, it passes them by. Those that many files share are worth their room.
    yield
    if _resident() > _allowed[0]:
        gc.unfreeze()
        if "jax" in sys.modules:
            sys.modules["jax"].clear_caches()
        gc.collect()
        _allowed[0] = max(MOST_RESIDENT, _resident() + MORE_RESIDENT)
    gc.freeze()


def _resident() -> int:
    statm = Path("/proc/self/statm")  # Linux has it
    pages = int(statm.read_text().split()[1]) if statm.exists() else MOST_RESIDENT
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(scope="module")
def ctrl_c() -> Iterator[None]:
    """Heed SIGINT, here and in processes started from here, where `make test &` would ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
