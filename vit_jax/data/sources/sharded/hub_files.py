# SPDX-License-Identifier: Apache-2.0
"""Datasets of the Hugging Face Hub, `hf:USER/NAME`, or a local snapshot of one, `hf:./FOLDER`.

Which files are which split stands in the head of its README.md, if anywhere, else in their names:
https://huggingface.co/docs/hub/datasets-manual-configuration
"""

import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax.data.sources.base import Source
from vit_jax.data.sources.captions import Captions
from vit_jax.data.sources.partition import options
from vit_jax.data.sources.sharded import parquet_files, shards, tar_files
from vit_jax.data.sources.sharded.shards import base_name, splits_of, where_of
from vit_jax.errors import UserError, shown, some, unknown
from vit_jax.storage import remote

_MOST = 1 << 22  # bytes of a card


def open_hf(
    name: str,
    split: str,
    captions: Captions = Captions.UNREAD,
    bands: tuple[str, ...] = (),
) -> Source:
    """Open one split of a dataset's Parquet or tar files, "USER/NAME?config=NAME".

    More options are those of `parquet_files.open_parquet` and `tar_files.open_tar`. A revision
    follows the name: "USER/NAME@refs/convert/parquet" has Parquet files of what has none.

    Raises UserError: no such dataset, config or split, several configs, or files of other kinds.
    """
    plain, chosen = options(name)
    is_folder = plain.startswith((".", "/", "~")) or os.path.isdir(plain)
    root = os.path.expanduser(plain) if is_folder else f"hf://datasets/{plain}"
    where = where_of(root) if is_folder else f"hf:{plain}"
    card = _card(root)
    config = _config(card, chosen.get("config", ""), where)
    patterns = _patterns(card, config, where)
    files, names, said = _listed(patterns, root) if patterns else _unlisted(root)
    ends = {file.path.rpartition(".")[2] for file in files}
    if is_folder and not os.path.isdir(root):
        raise UserError(f"there is no folder {where}; is it hf:USER/NAME, or hf:./FOLDER?")
    if patterns and not files:
        wanted = some([shown(each) for given in patterns.values() for each in given])
        raise UserError(f"{where}: no file is there that its card lists ({wanted}); download them")
    if ends not in ({"parquet"}, {"tar"}):
        has = f"files of kinds {', '.join(sorted(ends))}" if ends else "no Parquet or tar files"
        other = (
            "" if is_folder else f"; the Hub may have made some: hf:{plain}@refs/convert/parquet"
        )
        raise UserError(f"{where} has {has}{other}")
    of_file = dict(zip((file.path for file in files), names, strict=True))
    kept, notes = shards.complete(files, where, exact=False)
    open_shards = tar_files.open_shards
    if ends != {"tar"}:
        open_shards = functools.partial(parquet_files.open_shards, bands=bands)
    told = _told(root, card, config)
    splits = [of_file[file.path] for file in kept]
    said = (*notes, *said)
    return open_shards(where, kept, split, chosen, splits, told=told, notes=said, wanted=captions)


def _listed(
    patterns: Mapping[str, Sequence[str]], root: str
) -> tuple[list[remote.FileInfo], list[str], list[str]]:
    """Return the files of a card's patterns, the split of each, and notes on them."""
    found: dict[str, tuple[remote.FileInfo, str]] = {}
    twice: dict[tuple[str, str], list[str]] = {}
    notes = []
    for name, given in patterns.items():
        for pattern in given:
            files = remote.find(pattern, root)
            for file in files:
                before = found.get(file.path, (file, name))[1]
                if before != name:
                    twice.setdefault((before, name), []).append(file.path)
                found[file.path] = file, name
            if not files:
                notes.append(f"no file is there of the split {name} that its card lists, {pattern}")
    notes += [
        f"{shown(base_name(paths[0]))} is of {one} and of {two} by the card, and is read as {two}"
        + (f"; so are {len(paths) - 1:,} more" if len(paths) > 1 else "")
        for (one, two), paths in twice.items()
    ]
    return [file for file, _ in found.values()], [name for _, name in found.values()], notes


def _unlisted(root: str) -> tuple[list[remote.FileInfo], list[str], list[str]]:
    """Return the same of a dataset whose card lists no files: its Parquet files, else its tars."""
    kinds = {kind: remote.find(f"**/*.{kind}", root) for kind in ("parquet", "tar")}
    files, tars = kinds["parquet"] or kinds["tar"], kinds["tar"]
    notes = []
    if kinds["parquet"] and tars:
        notes = [f"{len(tars):,} tar files beside the Parquet files are not read"]
    return files, splits_of(files) if files else [], notes


def _card(root: str) -> dict[str, Any]:
    """Return the head of a dataset's README.md; raises UserError: no such dataset."""
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
        return {}
    return facts if isinstance(facts, dict) else {}


def _told(root: str, card: Mapping[str, Any], config: str) -> dict[str, int]:
    """Return how many examples of each split the card, or dataset_infos.json, tells of a config.

    {} if neither does, or if they describe several configs but not this one.
    """
    infos = _by_name(card.get("dataset_info"))
    if not infos and (found := remote.find("dataset_infos.jso[n]", root)):
        text = remote.read(found[0].path, _MOST)
        try:
            tree = json.loads(text)
        except (ValueError, RecursionError):
            tree = None
        infos = tree if isinstance(tree, dict) else {}
    only = "default" if "default" in infos or len(infos) != 1 else next(iter(infos))
    info = infos.get(config or only)
    splits = info.get("splits") if isinstance(info, Mapping) else None
    if isinstance(splits, Mapping):
        splits = [{"name": name, **each} for name, each in splits.items() if isinstance(each, dict)]
    told = [each for each in splits if isinstance(each, dict)] if isinstance(splits, list) else []
    return {
        each["name"]: each["num_examples"]
        for each in told
        if isinstance(each.get("name"), str) and type(each.get("num_examples")) is int
    }


def _by_name(listed: Any) -> dict[str, dict[str, Any]]:
    """Return the configs that a card lists, or the only one, by their names."""
    found = listed if isinstance(listed, list) else [listed]
    have = [each for each in found if isinstance(each, dict)]
    # Only plain values: with YAML's aliases ten lines can stand for a billion others.
    named = [each for each in have if isinstance(each.get("config_name", ""), str | int | float)]
    return {str(each.get("config_name", "default")): each for each in named}


def _configs(card: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    found = _by_name(card.get("configs"))
    return {name: each for name, each in found.items() if each.get("data_files")}


def _config(card: Mapping[str, Any], wanted: str, where: str) -> str:
    """Return the config to read, "" where the card lists none.

    Raises UserError: no such config, or several and none chosen.
    """
    by_name = _configs(card)
    if wanted and wanted not in by_name:
        raise unknown(f"config of {where}", wanted, by_name)
    usual = [name for name, each in by_name.items() if each.get("default") or name == "default"]
    names = [wanted] if wanted else usual or list(by_name)
    if len(names) > 1:
        first = f"choose one by the end of the name: ?config={names[0]}"
        raise UserError(f"{where} has several configs ({', '.join(names)}); {first}")
    return "".join(names)


def _patterns(card: Mapping[str, Any], config: str, where: str) -> dict[str, list[str]]:
    """Return the patterns of each split of a config; {} where the card lists none."""
    given = _configs(card)[config]["data_files"] if config else {}
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
