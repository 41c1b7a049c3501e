# SPDX-License-Identifier: Apache-2.0
"""What must be set before jax touches a device: XLA's CPU flags, the compilation cache, hosts."""

import os
from pathlib import Path

import jax

# Element-wise work is 1.5 to 2 times faster with 512-bit vectors where the CPU has them, and the
# memory-minimising schedule makes a ViT-S step 1.15 times faster than the concurrent one.
_CPU_FLAGS = (
    "--xla_cpu_prefer_vector_width=512",
    "--xla_cpu_enable_concurrency_optimized_scheduler=false",
)


def configure() -> None:
    """Set defaults that the user's own environment overrides; call before any jax computation."""
    given = os.environ.get("XLA_FLAGS", "")
    missing = [flag for flag in _CPU_FLAGS if flag.split("=")[0] not in given]
    os.environ["XLA_FLAGS"] = " ".join([*missing, given]).strip()
    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vit_jax" / "jax"
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
