# SPDX-License-Identifier: Apache-2.0
"""A device without enough memory, in one line that says what to lower."""

import contextlib
from collections.abc import Iterator

import jax

from vit_jax.errors import UserError

TRAINING = (
    "lower data.batch_size, or keep it with a larger accum_steps, model.remat=full or, on several "
    "devices, mesh.fsdp"
)
_LONGEST = 240  # letters of what JAX says


@contextlib.contextmanager
def explained(advice: str) -> Iterator[None]:
    """Raise UserError, with JAX's first line and the `advice`, where a device runs out of memory.

    The same for the machine's own memory.
    """
    try:
        yield
    except (jax.errors.JaxRuntimeError, MemoryError) as error:
        text = str(error)
        known = any(word in text.lower() for word in ("resource_exhausted", "out of memory"))
        if isinstance(error, jax.errors.JaxRuntimeError) and not known:
            raise
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        first = first if len(first) <= _LONGEST else f"{first[:_LONGEST]}..."
        said = f" ({first})" if first else ""
        raise UserError(f"out of memory{said}; {advice}") from error
