# SPDX-License-Identifier: Apache-2.0
"""Load weights of any supported format into a model's variables, or raise what does not fit."""

import contextlib
import functools
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import models, trees
from vit_jax.errors import UserError, setting
from vit_jax.models import ModelConfig
from vit_jax.models.initial import drawn
from vit_jax.process import waiting
from vit_jax.weights import grids, two_towers
from vit_jax.weights import resize as resize_lib
from vit_jax.weights.apply import OtherHead, fill
from vit_jax.weights.config import (
    CHECKPOINT,
    KINDS,
    OWN_PARAMETERS,
    Base,
    ResizeRule,
    added,
    split,
)
from vit_jax.weights.files import NoSuchFile, WeightsFile, first_bytes
from vit_jax.weights.layout import Entry, FileTensor, Own
from vit_jax.weights.names import google, hf, hf_config, timm
from vit_jax.weights.published import pairs
from vit_jax.weights.published import table as published
from vit_jax.weights.readers import npz_file, repository, safetensors_file, torch_file
from vit_jax.weights.resize import resizer

Flat = Mapping[str, np.ndarray]  # our names -> arrays


def load(
    ref: str,
    cfg: ModelConfig,
    *,
    skip: Sequence[str] = (),
    resize: ResizeRule = ResizeRule.AUTO,
    ema: bool = False,
    key: jax.Array | None = None,
) -> dict[str, Any]:
    """Read weights into the variables {"params": ..., **model_state} of `cfg`'s model, as numpy.

    Args:
        ref: "npz:FILE" of Google's codebases, "timm:FILE" (.safetensors, or .pth where torch is
            installed) under timm's or the authors' names, "ckpt:DIR[@step]" of a run of our own,
            "hub:USER/NAME[@REVISION]", or "hf:", of the Hugging Face Hub, "hub:./FOLDER" of its
            files: timm's, transformers' or an export of ours.
        cfg: the model; everything in it must be in the file and fit, and nothing be left over.
        skip: regexes over parameter names: those keep the model's own initial values.
        resize: the rule that resizes position tables, bias tables and patch kernels.
        ema: of a run, take the moving average of the parameters.
        key: of the initial values of what is skipped; that of seed 0 by default.

    Raises UserError: no such file or format; what does not fit, by key and shape.
    """
    found = read(ref, cfg, skip=skip, resize=resize, ema=ema)
    names = {name for name, _ in trees.named_leaves(models.abstract(cfg))} if skip else set()
    return trees.nest({**found, **initial(cfg, names - found.keys(), key)})


def read(
    ref: str,
    cfg: ModelConfig,
    *,
    field: str = "",
    skip: Sequence[str] = (),
    resize: ResizeRule = ResizeRule.AUTO,
    ema: bool = False,
    headless: bool = False,
    only_check: bool = False,
    own: Own | None = None,
) -> Flat:
    """Read weights as `load` does, by our names, without what is skipped.

    With `headless` a file may lack the head, as DINO's and SigLIP's do, and so does the result.
    What an objective trains beside the model, `own`, is read where the file has all of it.
    With `only_check` every key and shape is compared, but no tensor is read. `field` is the field
    of a run's config that holds `ref`: an error begins with it and names what to change.
    """
    with _advising(field, ref, headless):
        whole, (ref, backbone) = ref, added(ref)
        scheme, path = split(ref)
        if scheme != CHECKPOINT and models.logit_factor(cfg) != 1:
            raise UserError(
                f"{ref} was trained with attention logits over sqrt(d), this model has them over "
                "d; set model.mup_base_heads=0"
            )
        if scheme != CHECKPOINT and ema:
            raise UserError(f"{ref} holds no moving average to choose: only ckpt:DIR of a run does")
        if scheme == "npz" and resize is ResizeRule.AUTO:
            resize = ResizeRule.GOOGLE
        opened = _OPENERS[scheme](path, cfg, ema, own)
        with (
            waiting.said(f"reading {ref}"),
            opened as (source, entries, beside, is_ignored, old, rule, may_differ),
        ):
            source, beside = _without_classes(source, beside)
            fits = all(source.shapes.get(part.key) == part.shape for part in _parts(beside))
            rule = rule if resize is ResizeRule.AUTO else resize
            source = resize_lib.matched(source, cfg, old)
            found = fill(
                [*entries, *(beside if fits else ())],
                source,
                skip=skip,
                resize=resizer(rule, cfg, old),
                refused=grids.refused(entries, source, cfg, old, rule),
                stem=models.family(cfg).stem,
                is_ignored=is_ignored,
                headless=headless,
                only_check=only_check,
            )
        if backbone:
            given = {"skip": skip, "resize": resize, "headless": True, "only_check": only_check}
            return _sum(found, read(backbone, cfg, **given))
        if may_differ and not only_check:
            _check_whole(found, whole)
        return found


# The layer of what stands beside an encoder that has a row for each class.
_CLASSES = re.compile(r"^params/(eomt_class|segment/classifier)/")


def _without_classes(source: WeightsFile, beside: list[Entry]) -> tuple[WeightsFile, list[Entry]]:
    """Leave out the layer of the classes where a file has other ones: it starts anew."""
    of_classes = [entry for entry in beside if _CLASSES.match(entry.name)]
    parts = list(_parts(of_classes))
    if all(source.shapes.get(part.key) == part.shape for part in parts):
        return source, beside
    keys = {part.key for part in parts}
    shapes = {key: shape for key, shape in source.shapes.items() if key not in keys}
    return source._replace(shapes=shapes), [entry for entry in beside if entry not in of_classes]


def _sum(changes: Flat, backbone: Flat) -> Flat:
    """Add an encoder's parameters to what changes them; what stands beside it has nothing added."""
    return {name: x + backbone[name] if name in backbone else x for name, x in changes.items()}


def _check_whole(values: Flat, ref: str) -> None:
    """Refuse an EoMT's file that holds differences to a backbone, as those for DINOv3 do."""
    from vit_jax.weights.names import eomt  # late: most weights have nothing beside them

    if eomt.is_difference(values):
        raise UserError(
            f"{ref} holds the differences of an encoder from its backbone, which is published "
            f"elsewhere; name it behind a plus sign, as {ref}+hf:facebook/"
            "dinov3-vitl16-pretrain-lvd1689m"
        )


def _parts(entries: Iterable[Entry]) -> Iterator[FileTensor]:
    for entry in entries:
        yield from itertools.chain(*entry.layers)


@contextlib.contextmanager
def _advising(field: str, ref: str, headless: bool) -> Iterator[None]:
    """Add to an error the field and what to change, where a field is named."""
    try:
        yield
    except UserError as error:
        if not field:
            raise
        advice = ""
        if isinstance(error, NoSuchFile):
            kind = ref.partition(":")[0]
            advice = (
                "; the config's docstring has its address; or name another: "
                f"{setting(f'config.{field}={kind}:FILE')}"
            )
        elif isinstance(error, OtherHead) and headless:
            patterns = "".join(f"'{pattern}'," for pattern in error.patterns)
            skip = setting(f'config.init.skip="({patterns})"')
            advice = f", or start the head anew: {skip}"
        raise UserError(f"{field}: {error}{advice}", field=field) from None


class _Opened(NamedTuple):
    """An open file for a model."""

    source: WeightsFile
    entries: list[Entry]  # where it has each parameter of the model
    beside: list[Entry]  # where it would have those of an objective
    is_ignored: Callable[[str], bool]  # which of its keys are nothing of a model
    old: ModelConfig | None = None  # the model that it was saved from, where that is known
    resize: ResizeRule = ResizeRule.AUTO  # whose rule resizes it where none is chosen
    may_differ: bool = False  # whether its encoder may be the differences from a backbone


@contextlib.contextmanager
def _open_npz(path: str, cfg: ModelConfig, ema: bool, own: Own | None) -> Iterator[_Opened]:
    with npz_file.opened(path) as source:
        prefix = google.prefix(cfg, source.shapes)
        ignored = functools.partial(google.is_ignored, prefix=prefix)
        old = google.saved(cfg, source.shapes)
        found = _Opened(source, google.entries(cfg, source.shapes), [], ignored, old)
        yield _with_text(found, source, own)


@contextlib.contextmanager
def _open_timm(path: str, cfg: ModelConfig, ema: bool, own: Own | None) -> Iterator[_Opened]:
    # A zip, or the pickles of before PyTorch 1.6. The length of a .safetensors file's header may
    # begin as they do, one in 32 does.
    start = first_bytes(path)
    is_torch = start.startswith((b"PK", b"\x80")) and start[8:9] != b"{"
    with (torch_file if is_torch else safetensors_file).opened(path) as source:
        yield _timm_names(source, cfg, own, published.about(path))


def _timm_names(
    source: WeightsFile, cfg: ModelConfig, own: Own | None, about: Mapping[str, Any]
) -> _Opened:
    entries, beside = timm.entries(cfg), timm.entries(cfg, own) if own else []
    named = timm.with_timm_names(source, cfg, entries)
    old = grids.saved(named._replace(metadata=source.metadata), about, cfg)
    if own is not None and _QUERY in own.shapes:
        beside, named = _eomt(own, "official"), _with_heads(named, source)
    return _with_text(_Opened(named, entries, beside, timm.is_ignored, old), source, own)


def _with_text(image: _Opened, source: WeightsFile, own: Own | None) -> _Opened:
    """See both towers where a pair is to be read, and a file holds a text tower too."""
    if own is None or own.pair is None or two_towers.form(source.shapes) is None:
        return image
    pair = two_towers.opened(source, own.pair)
    return image._replace(
        source=pair.source, entries=pair.entries, beside=[], is_ignored=pair.is_ignored
    )


def _with_head(image: _Opened, own: Own | None, tree: Mapping[str, Any], source: str) -> _Opened:
    """See a depth model's head where one of its shapes is to be read; else leave it out."""
    from vit_jax.weights.names import hf_depth  # late: most files have no such head

    beside: list[Entry] = []
    if own is not None and hf_depth.HEAD in own.shapes and image.old is not None:
        head = hf_depth.config(tree, image.old, source)
        there = {entry.name: entry for entry in hf_depth.entries(head, image.old)}
        wanted = {f"params/{n}": leaf.shape for n, leaf in trees.named_leaves(own.shapes)}
        if wanted.items() <= {name: entry.shape for name, entry in there.items()}.items():
            beside = list(there.values())
    inner, has_head = image.is_ignored, bool(beside)

    def is_ignored(key: str) -> bool:
        return inner(key) or hf_depth.is_ignored(key, has_head=has_head)

    return image._replace(beside=beside, is_ignored=is_ignored)


@contextlib.contextmanager
def _open_ckpt(path: str, cfg: ModelConfig, ema: bool, own: Own | None) -> Iterator[_Opened]:
    from vit_jax.weights import adapters
    from vit_jax.weights.readers import ckpt

    saved = ckpt.Checkpoint(path, ema=ema)
    ours, theirs = models.logit_factor(cfg), models.logit_factor(saved.model)
    if ours != theirs:
        raise UserError(
            f"{saved.name} multiplies attention logits by {theirs:.3g}, this model by {ours:.3g}; "
            "set model.mup_base_dim and mup_base_heads as they were in its config"
        )
    theirs = set(saved.metadata.get(OWN_PARAMETERS, ()))
    entries = ckpt.entries(models.abstract(cfg))
    beside = ckpt.entries({"params": own.shapes, **own.state}) if own else []
    is_ignored = lambda name: name.partition("/")[0] in theirs  # noqa: E731
    base = Base.of(saved.metadata)
    source = saved.file if base is None else adapters.whole(saved, base, read)
    flexi = getattr(saved.model, "base_patch", ())
    rule = ResizeRule.TIMM_NPZ if flexi else ResizeRule.AUTO  # as its forward pass resizes
    yield _Opened(source, entries, beside, is_ignored, saved.model, rule)


@contextlib.contextmanager
def _open_repository(path: str, cfg: ModelConfig, ema: bool, own: Own | None) -> Iterator[_Opened]:
    found = repository.opened(path)
    tree = found.json(repository.CONFIG) or {}
    if found.json(pairs.OPEN_CLIP) is not None:
        tree = {}
    with found.weights() as source:
        if hf_config.is_transformers(tree):
            facts = hf_config.Facts(tree, found.source(repository.CONFIG))
            layout = facts.layout
            before = hf.prefix(layout, source.shapes)
            entries = hf.entries(cfg, layout, before)
            is_ignored = functools.partial(hf.is_ignored, cfg=cfg, layout=layout, before=before)
            seen = hf.seen(source, cfg, layout, before)
            old = grids.like(cfg, hf_config.image_size(facts), facts.pair("patch_size"))
            # For images of any shape, the config has a number of patches and no image size.
            rule = ResizeRule.NAFLEX if facts.has("num_patches") else ResizeRule.OFFICIAL
            if facts.kind == "vit" and tree["model_type"] in hf_config.DENSE:
                rule = ResizeRule.TIMM_NPZ  # as DPT's authors: bilinear
            beside = _eomt(own) if facts.kind.startswith("eomt") else []
            differs = facts.kind == "eomt_dinov3"
            opened = _Opened(seen, entries, beside, is_ignored, old, rule, differs)
            if tree["model_type"] in hf_config.DENSE:
                yield _with_head(opened, own, tree, found.source(repository.CONFIG))
            else:
                yield _with_text(opened, source, own)
        elif own is None and not (tree or cfg.num_classes):  # open_clip's encoder alone
            plain = two_towers.without_image_head(source)
            yield _timm_names(plain, cfg, None, {})
        else:
            yield _timm_names(source, cfg, own, published.pretrained(tree))


_QUERY = "eomt_query"  # `models.dense.eomt.QUERY`, which only who has it imports
_AUTHORS = re.compile(r"^(?:network\.)?((?:q|class_head|mask_head|upscale)\..*)")


def _with_heads(encoder: WeightsFile, source: WeightsFile) -> WeightsFile:
    """Add to an encoder what the file of EoMT's authors has beside it."""
    keys = {match[1]: key for key in source.shapes if (match := _AUTHORS.match(key))}
    shapes = {**encoder.shapes, **{new: source.shapes[key] for new, key in keys.items()}}

    def read(key: str) -> np.ndarray:
        return source.read(keys[key]) if key in keys else encoder.read(key)

    return WeightsFile(source.name, shapes, read)


def _eomt(own: Own | None, code: str = "hf") -> list[Entry]:
    """List what a file has of EoMT, where that is to be read."""
    if own is None:
        return []
    from vit_jax.weights.names import eomt  # late: most weights have nothing beside them

    return eomt.beside(own.shapes, code)


_OPENERS = {
    "npz": _open_npz,
    "timm": _open_timm,
    CHECKPOINT: _open_ckpt,
    **dict.fromkeys(KINDS, _open_repository),
}


def initial(
    cfg: ModelConfig, names: set[str] | None, key: jax.Array | None = None
) -> dict[str, Any]:
    """Return the model's own initial values of the named variables, or of all, and compute these.

    All (None) takes less time than their names would, which a trace of the network gives.
    """
    if names is not None and not names:
        return {}
    cfg = models.looped(cfg)
    module = models.create(cfg)

    def values(key: jax.Array) -> dict[str, jax.Array]:
        params, state = models.init(module, cfg, key)
        leaves = trees.named_leaves({"params": params, **state})
        return {name: leaf for name, leaf in leaves if names is None or name in names}

    return dict(drawn(values, jax.random.key(0) if key is None else key))
