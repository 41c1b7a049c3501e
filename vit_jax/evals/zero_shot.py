# SPDX-License-Identifier: Apache-2.0
"""Classes told by their names: the class whose prompts lie nearest to an image (CLIP section 3.1).

A class's vector is the mean of the unit vectors of its prompts, brought to unit length again, as
OpenAI, big_vision and open_clip have it; one that is called several things has all their prompts.
Scale and bias of the logits do not change which is first.
"""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Float32, Int

from vit_jax.data import classes
from vit_jax.errors import UserError, unknown
from vit_jax.evals.base import EvalContext, EvalStream, Folder, Predict, Predictors
from vit_jax.evals.config import ZeroShotEval
from vit_jax.evals.passes import run_pass
from vit_jax.evals.probes.features import extract, predict_batch
from vit_jax.storage import files, foreign
from vit_jax.trees import PyTree

PROMPTS = Path(__file__).with_name("prompts")
PLACE = "{}"
_IMAGENET = "imagenet_names.txt"  # OpenAI's, which say more than WordNet's
_MOST = 2**20  # bytes of a file of templates
_MOST_NAMES = 2**24  # of a file of names
_ROWS = 256  # prompts at a time

Embed = Callable[[Sequence[str]], np.ndarray]  # n texts -> unit vectors [n, E]


def sets() -> dict[str, Path]:
    """Return the sets of templates that are here, by name."""
    return {file.stem: file for file in sorted(PROMPTS.glob("*.txt")) if file.name != _IMAGENET}


def templates(which: str, field: str = "templates") -> tuple[str, ...]:
    """Read templates: a set's name, a file with one a line, or one template itself.

    Raises UserError: no such set or file; a template without {} where the class's name goes.
    """
    file = Path(which).expanduser()
    if which in sets():
        text = sets()[which].read_text("utf-8")
    elif PLACE in which or (" " in which and not file.exists()):
        text = which
    elif file.is_file():
        with files.refused(f"cannot read {field}={which}"):
            text = foreign.read(file, _MOST).decode(errors="replace")
    else:
        raise unknown(f"{field}:", which, [*sets(), "FILE", "'a photo of a {}.'"], field=field)
    lines = text.splitlines()
    found = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    for line in found:
        if line.count(PLACE) != 1 or "{" in line.replace(PLACE, ""):
            raise UserError(
                f"{field}={which}: {line!r} must have {PLACE} once, where the class's name goes",
                field=field,
            )
    if not found:
        raise UserError(f"{field}={which} holds no template", field=field)
    return tuple(found)


def names(
    class_names: Sequence[str], file: str = "", field: str = "names"
) -> tuple[tuple[str, ...], ...]:
    """Return what each class is called in a prompt, one thing or several.

    Without a file, ImageNet's are called as OpenAI calls them; others by what stands before a
    comma, with blanks for underscores.

    Args:
        class_names: the names that the dataset has.
        file: an object of JSON from a class to a name or a list of them; one that comes twice
            counts twice, and classes of other datasets may be there.
        field: the setting that names the file, for messages.

    Raises UserError: a class without a name, or two of the same names, which nothing tells apart; a
    file that cannot be read or is something else.
    """
    readable = classes.readable(class_names)
    if file:
        found = _from_file(class_names, file, field)
    elif readable == tuple(classes.names_by_synset().values()):
        return tuple((x,) for x in (PROMPTS / _IMAGENET).read_text("utf-8").splitlines())
    else:
        found = tuple((x.partition(",")[0].replace("_", " ").strip(),) for x in readable)
    for called, given in zip(found, class_names, strict=True):
        if not called or not all(called):
            raise UserError(f"the class {given!r} has no name, and a prompt needs one")
    seen: set[tuple[str, ...]] = set()
    for called in found:
        if (same := tuple(sorted(called))) in seen:
            raise UserError(
                f"two classes are called {called[0]!r}, and a prompt cannot tell them apart; "
                "rename one"
            )
        seen.add(same)
    return found


def _from_file(class_names: Sequence[str], file: str, field: str) -> tuple[tuple[str, ...], ...]:
    with files.refused(f"cannot read {field}={file}"):
        tree = foreign.tree(foreign.read(Path(file).expanduser(), _MOST_NAMES), f"{field}={file}")
    found = []
    for name in class_names:
        if name not in tree:
            raise UserError(f"{field}={file} has no name of the class {name!r}", field=field)
        called = tree[name] if isinstance(tree[name], list) else [tree[name]]
        if not all(isinstance(each, str) for each in called):
            raise UserError(
                f"{field}={file}: {name!r} must have a name, or a list of names", field=field
            )
        found.append(tuple(each.strip() for each in called))
    return tuple(found)


def class_vectors(
    embed: Embed, called: Sequence[Sequence[str]], templates: Sequence[str]
) -> Float32[np.ndarray, "K E"]:
    """Return the unit vector of each class; what it is called is as `names` returns it."""
    prompts = [[line.replace(PLACE, x) for x in each for line in templates] for each in called]
    known = {text: i for i, text in enumerate(dict.fromkeys(itertools.chain(*prompts)))}
    found = np.asarray(embed(list(known)), np.float32)
    return unit(np.stack([found[[known[x] for x in each]].mean(axis=0) for each in prompts]))


def unit(x: np.ndarray) -> np.ndarray:
    """Divide rows by their length."""
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-12)


def ranked(
    images: Float32[np.ndarray, "N E"], vectors: Float32[np.ndarray, "K E"], count: int = 5
) -> Int[np.ndarray, "N k"]:
    """Return the nearest classes of each image, the nearest first; of equal ones the lower id."""
    count = min(count, len(vectors))
    found = []
    for start in range(0, len(images), 4096):
        near = images[start : start + 4096] @ vectors.T
        found.append(np.argsort(-near, axis=1, kind="stable")[:, :count])
    return np.concatenate(found)


def scores(found: Int[np.ndarray, "N k"], labels: np.ndarray) -> dict[str, float]:
    """Return top1 and top5; of several labels an image, any counts, and one without none is left.

    Raises UserError: no image has a label.
    """
    if labels.ndim > 1:
        kept = labels.any(axis=1)
        hits = np.take_along_axis(labels[kept] > 0, found[kept], axis=1)
    else:
        kept = labels >= 0
        hits = found[kept] == labels[kept, None]
    if not kept.any():
        raise UserError("no image has a label to compare with")
    return {
        "top1": float(hits[:, 0].mean()),
        "top5": float(hits.any(axis=1).mean()),
        "num_examples": float(kept.sum()),
    }


def embedder(predict: Predict, variables: PyTree, context: EvalContext) -> Embed:
    """Return what embeds texts by a run's predictor, in batches over its devices."""

    def embed(texts: Sequence[str]) -> np.ndarray:
        tokens = context.tokenizer.encode(texts)
        done: list[np.ndarray] = []

        def batches(size: int) -> Any:
            for start in range(0, len(tokens), size):
                part = tokens[start : start + size]
                pad = ((0, size - len(part)), (0, 0))
                mask = (np.arange(size) < len(part)).astype(np.float32)
                yield {"tokens": np.pad(part, pad), "mask": mask}

        def compute(batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            mask = {"mask": batch["mask"]}
            return predict_batch(variables, batch, mask, predict=predict, mesh=context.mesh)

        def take(result: dict[str, jax.Array]) -> None:
            done.append(np.asarray(result["features"])[np.asarray(result["mask"]) > 0])

        run_pass(batches, _ROWS, context.mesh, compute, take)
        return np.concatenate(done)

    return embed


@dataclasses.dataclass(frozen=True, kw_only=True)
class ZeroShot:
    """Evaluator of top1 and top5 by the names of the classes."""

    stream: EvalStream
    context: EvalContext
    called: tuple[tuple[str, ...], ...]
    templates: tuple[str, ...]

    def run(
        self, predictors: Predictors, variables: PyTree, report_dir: Folder = None, of: str = ""
    ) -> dict[str, float]:
        """Return top1, top5 and num_examples; raises UserError: an image that cannot be read."""
        del report_dir, of
        embed = embedder(predictors["text_embedding"], variables, self.context)
        vectors = class_vectors(embed, self.called, self.templates)
        shape = (*self.context.image_size, self.context.channels)
        found = extract(
            predictors["image_embedding"],
            variables,
            self.stream.source,
            self.stream.batches,
            shape=shape,
            mesh=self.context.mesh,
            batch_size=self.stream.batch_size,
        )["features"]
        return scores(ranked(found.features, vectors), found.labels)


def create(cfg: ZeroShotEval, context: EvalContext) -> ZeroShot:
    """Build the evaluator of a config."""
    stream = EvalStream(cfg, context)
    return ZeroShot(
        stream=stream,
        context=context,
        called=names(stream.source.class_names, cfg.names),
        templates=templates(cfg.templates),
    )
