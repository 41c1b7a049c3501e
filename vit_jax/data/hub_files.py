# SPDX-License-Identifier: Apache-2.0
"""Datasets of the Hugging Face Hub, `hf:USER/NAME`, or a local snapshot of one, `hf:./FOLDER`.

Which files are which split stands in the head of its README.md, if anywhere, else in their names:
https://huggingface.co/docs/hub/datasets-manual-configuration
"""

import os
from collections.abc import Mapping
from typing import Any

from vit_jax import remote
from vit_jax.data import parquet_files, tar_files
from vit_jax.data.partition import options
from vit_jax.data.shards import splits_of, where_of
from vit_jax.data.sources import Source
from vit_jax.errors import UserError, unknown

_MOST = 1 << 22  # bytes of a card


def open_hf(name: str, split: str) -> Source:
    """Open one split of a dataset's Parquet or tar files, "USER/NAME?config=NAME".

    More options are those of `parquet_files.open_parquet` and `tar_files.open_tar`. A revision
    follows the name: "USER/NAME@refs/convert/parquet" has Parquet files of what has none.

    Raises UserError: no such dataset, config or split, several configs, or files of other kinds.
    """
    plain, chosen = options(name)
    is_folder = plain.startswith((".", "/", "~")) or os.path.isdir(plain)
    root = os.path.expanduser(plain) if is_folder else f"hf://datasets/{plain}"
    where = where_of(root) if is_folder else f"hf:{plain}"
    patterns = _patterns(_card(root), chosen.get("config", ""), where)
    if patterns:
        found = {
            file.path: (file, name)
            for name, given in patterns.items()
            for pattern in given
            for file in remote.find(pattern, root)
        }
        files, names = [f for f, _ in found.values()], [name for _, name in found.values()]
    else:
        kinds = (remote.find(f"**/*.{kind}", root) for kind in ("parquet", "tar"))
        files = next((each for each in kinds if each), [])
        names = splits_of(files) if files else []
    ends = {file.path.rpartition(".")[2] for file in files}
    if ends not in ({"parquet"}, {"tar"}):
        has = f"files of kinds {', '.join(sorted(ends))}" if ends else "no Parquet or tar files"
        other = (
            "" if is_folder else f"; the Hub may have made some: hf:{plain}@refs/convert/parquet"
        )
        raise UserError(f"{where} has {has}{other}")
    open_shards = tar_files.open_shards if ends == {"tar"} else parquet_files.open_shards
    return open_shards(where, files, split, chosen, names)


def _card(root: str) -> list[dict[str, Any]]:
    """Return the configs that a dataset's README.md lists; raises UserError: no such dataset."""
    import yaml  # late: few runs need it

    try:
        found = remote.find("README.m[d]", root)
    except remote.MissingError as error:
        raise UserError(f"{error}; is it hf:USER/NAME, or hf:./FOLDER of a snapshot?") from None
    text = remote.read(found[0].path, _MOST).decode(errors="replace") if found else ""
    head = text.split("\n---", 1)[0].removeprefix("---") if text.startswith("---") else ""
    try:
        facts = yaml.safe_load(head)
    except (yaml.YAMLError, RecursionError, ValueError):
        return []
    listed = facts.get("configs") if isinstance(facts, dict) else ()
    listed = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    # Of texts alone: by YAML's aliases ten lines can stand for a billion of others.
    named = [each for each in listed if isinstance(each.get("config_name", ""), str | int | float)]
    return [each for each in named if each.get("data_files")]


def _patterns(configs: list[dict[str, Any]], wanted: str, where: str) -> dict[str, list[str]]:
    """Return the patterns of each split of a config; {} where the card lists none.

    Raises UserError: no such config, or several and none chosen.
    """
    by_name = {str(each.get("config_name", "default")): each for each in configs}
    if wanted and wanted not in by_name:
        raise unknown(f"config of {where}", wanted, by_name)
    usual = [name for name, each in by_name.items() if each.get("default") or name == "default"]
    names = [wanted] if wanted else usual or list(by_name)
    if len(names) > 1:
        first = f"choose one by the end of the name: ?config={names[0]}"
        raise UserError(f"{where} has several configs ({', '.join(names)}); {first}")
    given = by_name[names[0]]["data_files"] if names else {}
    if isinstance(given, Mapping):
        given = [{"split": split, "path": path} for split, path in given.items()]
    found: dict[str, list[str]] = {}
    for each in given if isinstance(given, list) else [given]:
        entry = each if isinstance(each, Mapping) else {"split": "train", "path": each}
        paths, named = entry.get("path"), entry.get("split", "train")
        for path in paths if isinstance(paths, list) else [paths]:
            if not isinstance(path, str) or not isinstance(named, str):
                raise UserError(f"{where}: the data_files of its card name no files; mend the card")
            found.setdefault(named, []).append(path)
    return found
