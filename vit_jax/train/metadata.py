# SPDX-License-Identifier: Apache-2.0
"""What a run says of itself, in its workdir and with every checkpoint, and what of it must stay."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from vit_jax import __version__, config_json
from vit_jax.config import Config
from vit_jax.errors import UserError
from vit_jax.train import identity, workdir
from vit_jax.weights.ckpt import OWN_PARAMETERS

_EXTRAS = "teacher"  # the digest of what an objective reads from outside


def describe(
    cfg: Config,
    class_names: Sequence[str],
    splits: Mapping[str, Any],
    digest: str,
    own: Sequence[str],
) -> dict[str, Any]:
    """Return what a checkpoint says about itself, besides its arrays.

    Args:
        cfg: the run.
        class_names: of the training split.
        splits: of `identity.describe`.
        digest: of the objective's `Extras`.
        own: parameters, by the first part of their names, that are the objective's and not the
            model's; who takes the model out of the run leaves them.
    """
    return {
        **({_EXTRAS: digest} if digest else {}),
        **({OWN_PARAMETERS: list(own)} if own else {}),
        identity.KEY: splits,
        "config": config_json.to_json(cfg),
        "class_names": list(class_names),
        "versions": {"vit_jax": __version__, "jax": jax.__version__},
    }


def write(place: Path, metadata: Mapping[str, Any]) -> None:
    """Leave the config and the class names in the workdir."""
    if jax.process_index() != 0:
        return
    (place / workdir.CONFIG).write_text(json.dumps(metadata["config"], indent=2) + "\n")
    (place / workdir.CLASSES).write_text(json.dumps(metadata["class_names"], indent=1) + "\n")


def check_extras_unchanged(digest: str, saved: Mapping[str, Any], place: Path) -> None:
    """Refuse to continue a run with a teacher of other weights.

    Raises:
        UserError: with both digests.
    """
    before = saved.get(_EXTRAS, "")
    if digest != before:
        raise UserError(
            f"objective.distill.weights are not those that {place} was started with (digest "
            f"{digest or 'none'}, not {before or 'none'}); choose another workdir, or add "
            "--allow_config_change to continue from its checkpoint anyway"
        )


def check_unchanged(lines: list[str], place: Path) -> None:
    """Refuse to continue a run under a config that computes something else.

    Args:
        lines: what differs, by `config_json.changes`.
        place: the workdir.

    Raises:
        UserError: something does.
    """
    if lines:
        more = f"; and {len(lines) - 4} more" if len(lines) > 4 else ""
        raise UserError(
            f"{place} was started with another config ({'; '.join(lines[:4])}{more}); choose "
            "another workdir, or add --allow_config_change to continue from its checkpoint anyway"
        )
