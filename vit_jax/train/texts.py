# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a run that learns from captions: found, checked, and kept in its workdir."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import jax

from vit_jax import data
from vit_jax.config.tree import Config
from vit_jax.errors import UserError, setting
from vit_jax.weights.config import CHECKPOINT
from vit_jax.workdir import folder as workdir

if TYPE_CHECKING:
    from vit_jax.text.tokenizers import Tokenizer

_FIELD = "objective.tokenizer"


def needed(cfg: Config) -> data.Captions:
    """Return whether the run reads the captions of its images."""
    return data.Captions.NEEDED if cfg.objective.embeds_texts else data.Captions.UNREAD


def tokenized(cfg: Config, source: data.Source) -> data.Source:
    """Return a source whose captions come as the tokens of the run's text tower, if it has one.

    Raises UserError: no tokenizer, or one with more ids or a larger context than the tower's.
    """
    if not cfg.objective.embeds_texts:
        return source
    return data.Tokenized(source, open_tokenizer(cfg))


def tokenizer(source: data.Source) -> "Tokenizer | None":
    """Return the tokenizer of a source from `tokenized`; None for one without texts."""
    return cast("Tokenizer", source.tokenizer) if isinstance(source, data.Tokenized) else None


def open_tokenizer(cfg: Config) -> "Tokenizer":
    """Open the tokenizer of a run, with rows as long as its text tower's context.

    Raises UserError: there is none, or it has other ids than the tower's table.
    """
    from vit_jax.weights.published import words  # late: most runs have no texts

    objective: Any = cfg.objective
    ref = objective.tokenizer or cfg.init.weights
    if not ref:
        raise UserError(
            f"{_FIELD} names no tokenizer: train one on your captions, `vit_jax train-tokenizer`, "
            f"and set {setting(f'config.{_FIELD}=FILE')}; or start from weights that have one",
            field=_FIELD,
        )
    try:
        found = words.find(ref)
    except UserError as error:
        raise UserError(f"{_FIELD}: {error}", field=_FIELD) from None
    size, count = objective.text.vocab_size, found.vocab_size
    if not count <= size <= count + count // 16:
        flag = setting(f"config.objective.text.vocab_size={count}")
        raise UserError(
            f"objective.text.vocab_size={size}, but {found.name} has {count:,} tokens; set {flag}, "
            "or name the tokenizer of the weights"
        )
    return found.with_context(objective.text.context)


def settled(cfg: Config, path: Path, url: str = "") -> Config:
    """Return the config with the tokenizer that a run in a workdir began with, if it has one.

    `url` is the bucket where the run is kept besides, "" for none.

    Raises UserError: the config names another one.
    """
    if not cfg.objective.embeds_texts:
        return cfg
    from vit_jax.weights.published import words  # late, as above

    objective: Any = cfg.objective
    here = (path / workdir.TOKENIZER).exists()
    place = str(path) if here else url
    kept = words.of_run(place) if place else None
    if kept is None:
        return cfg
    ref = objective.tokenizer or cfg.init.weights
    try:
        named = words.find(ref) if ref else kept
    except UserError:  # it has gone; the run has its own
        named = kept
    if named.with_context(kept.context).digest != kept.digest:
        raise UserError(
            f"{_FIELD}={ref} is not the tokenizer that {path} began with, and other ids mean other "
            "words; name that one, or choose another workdir",
            field=_FIELD,
        )
    own = str(path / workdir.TOKENIZER) if here else f"{CHECKPOINT}:{url}"
    return dataclasses.replace(cfg, objective=dataclasses.replace(objective, tokenizer=own))


def keep(source: data.Source, path: Path) -> None:
    """Write the tokenizer of a run, if it has one, into its workdir."""
    own, found = path / workdir.TOKENIZER, tokenizer(source)
    if jax.process_index() == 0 and found and not own.exists():
        from vit_jax.text import tokenizers  # late, as above

        tokenizers.save(found, own)
