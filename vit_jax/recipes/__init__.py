# SPDX-License-Identifier: Apache-2.0
"""Published recipes as functions that return whole configs: one file a paper or codebase."""

from collections.abc import Iterable

from vit_jax.errors import UserError


def choose(kind: str, name: str, choices: Iterable[str]) -> str:
    """Return a config's argument, `--config=FILE:name`, if it is one of `choices`.

    Raises UserError: another argument; the message lists all valid ones.
    """
    valid = list(choices)
    if name not in valid:
        raise UserError(f"unknown {kind} {name!r}; valid: {', '.join(valid)}")
    return name
