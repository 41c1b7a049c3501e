# SPDX-License-Identifier: Apache-2.0
"""Configs out of files: what a config file returns, and a run's config.json."""

import importlib.util
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from vit_jax.errors import UserError
from vit_jax.settings.names import nearest
from vit_jax.storage import foreign

if TYPE_CHECKING:
    from vit_jax.config.tree import Config


def load(path: Path, argument: str | None) -> "Config":
    """Return what get_config() of a file returns, called with the argument where there is one.

    Of a run's config.json, the config that it was started with.

    Raises UserError: whatever the file raises, or a get_config() that returns something else.
    """
    from vit_jax.config import check_types
    from vit_jax.config.tree import Config

    if path.suffix == ".json":
        return _load_json(path, argument)
    spec = importlib.util.spec_from_file_location("vit_jax_config", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        base = module.get_config() if argument is None else module.get_config(argument)
        if not isinstance(base, Config):
            raise UserError(f"{path}: get_config() must return a vit_jax.config.Config")
        check_types(base)
    except UserError:
        raise
    except Exception as error:  # whatever a user's own file does
        if argument and str(error).startswith("get_config() takes 0 positional arguments"):
            raise UserError(f"{path} takes no argument; drop ':{argument}'") from error
        text = str(error)
        unknown = re.search(r"(?:attribute|keyword argument) '(\w+)'", text)
        near = nearest(Config(), unknown[1]) if unknown else []
        if unknown and near:  # for what Python 3.14 adds, which knows only the group's own fields
            text = f"{text[: unknown.end()]}; did you mean {' or '.join(near)}?"
        raise UserError(f"{path} cannot be read: {type(error).__name__}: {text}") from error
    return base


def _load_json(path: Path, argument: str | None) -> "Config":
    from vit_jax.config import check_types
    from vit_jax.config import saved as config_json

    if argument is not None:
        raise UserError(f"{path} takes no argument; drop ':{argument}'")
    try:
        base = config_json.from_json(json.loads(foreign.read(path)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path} is no config.json of a run: {error}") from error
    check_types(base)
    return base
