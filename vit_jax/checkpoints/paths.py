# SPDX-License-Identifier: Apache-2.0
"""Where checkpoints may lie."""

from pathlib import Path

from vit_jax.errors import UserError, shown

_PATTERN = "*?[]\\"


def check_path(directory: Path) -> None:
    """Refuse a directory that Orbax writes to and does not find again.

    It looks for the parts of a checkpoint by a pattern that begins with the path itself, and stores
    paths as UTF-8.

    Raises:
        UserError: naming the characters.
    """
    odd = sorted(set(str(directory)) & set(_PATTERN))
    if odd:
        raise UserError(
            f"{directory} has {' '.join(odd)} in its path, by which checkpoints are not found "
            f"again; choose a workdir without any of {' '.join(_PATTERN)}"
        )
    try:
        str(directory).encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{shown(str(directory))} is no UTF-8, which checkpoints need; choose another workdir"
        ) from None
