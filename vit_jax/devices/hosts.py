# SPDX-License-Identifier: Apache-2.0
"""What the processes of a run tell one another."""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import UserError


def gather(value: Any) -> list[Any]:
    """Return the JSON of all processes in their order."""
    if jax.process_count() == 1:
        return [value]
    raw = np.frombuffer(json.dumps(value).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.asarray(raw.size))
    padded = np.zeros(int(sizes.max()), np.uint8)
    padded[: raw.size] = raw
    rows = np.asarray(multihost_utils.process_allgather(padded))
    return [json.loads(bytes(row[:size])) for row, size in zip(rows, np.ravel(sizes), strict=True)]


def led(do: Callable[[], Any]) -> Any:
    """Return what `do` returns in process 0, JSON, in all processes, or raise its error there."""
    value, failure = None, None
    try:
        value = do() if jax.process_index() == 0 else None
    except UserError as error:
        failure = error
    if jax.process_count() > 1:
        value, told = gather([value, str(failure or "")])[0]
        failure = failure or (UserError(told) if told else None)
    if failure is not None:
        raise failure
    return value
