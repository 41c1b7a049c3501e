# SPDX-License-Identifier: Apache-2.0
"""The demo page as HTML, and the answer that it shows for an image."""

import base64
import dataclasses
import functools
import hashlib
import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Num, UInt8
from PIL import Image

from vit_jax import models, trees
from vit_jax.data import Crop, Resize, TransformConfig, evaluation_view
from vit_jax.figures.contact_sheet import overlay
from vit_jax.inference import images, views
from vit_jax.inference.forward import make_forward, probabilities
from vit_jax.inference.trained import Trained
from vit_jax.process.escapes import html, terminal
from vit_jax.visual import saliency

if TYPE_CHECKING:
    from vit_jax.inference.pairs import Pair

_TOP = 5  # classes shown
MOST_WORDS = 32  # that a visitor may have choose among
_LARGEST = 1024  # pixels of a side that a model of pixels is given
_KEPT = 64  # lists of words whose vectors are kept
_SIDE = 448  # pixels that a small image is enlarged to, for its heat map to be smooth


class Reply(NamedTuple):
    """The model's answer for an image."""

    classes: list[tuple[str, float]]  # the likeliest ones and their probabilities, in order
    # What the model saw, under the map of where it looked; None where nobody asks for it.
    overlay: UInt8[np.ndarray, "P Q 3"] | None
    numbers: bool = False  # whether these are outputs and their numbers
    colours: tuple[str, ...] = ()  # of each in the overlay, "#rrggbb": a legend

    def as_json(self) -> dict[str, Any]:
        """Return what a visitor's browser is sent, the picture as a data: URL."""
        found = [{"name": name, "probability": chance} for name, chance in self.classes]
        if self.numbers:
            found = [{"name": name, "text": f"{value:.6g}"} for name, value in self.classes]
        for each, colour in zip(found, self.colours, strict=False):
            each["colour"] = colour
        if self.overlay is None:
            return {"classes": found}
        return {"classes": found, "overlay": _data_url(Image.fromarray(self.overlay), "png")}


class Example(NamedTuple):
    """An image on the page that a visitor may choose."""

    name: str  # of its file
    view: Num[np.ndarray, "H W C"]  # as the model takes it
    picture: str  # a data: URL


def read_view(trained: Trained, source: str | Path | bytes) -> Num[np.ndarray, "H W C"]:
    """Read an image as the model takes it, from a file or its bytes; raises UserError: no image."""
    image = images.read_image(source, trained.channels, trained.reading)
    if trained.head is not None:  # each pixel counts: the whole image, if not too large
        height, width = image.shape[:2]
        factor = min(1.0, _LARGEST / max(height, width))
        size = max(round(height * factor), 1), max(round(width * factor), 1)
        whole = TransformConfig(crop=Crop.RESIZE, resize=trained.transform.resize)
        return image if factor == 1 else evaluation_view(image, whole, size)
    return evaluation_view(image, trained.transform, trained.image_size)


def read_example(trained: Trained, file: str) -> Example:
    """Read an image file for the page; raises UserError: no image."""
    view = read_view(trained, file)
    seen = images.read_image(
        file, trained.channels if trained.reading.bands else 3, trained.reading
    )
    shown = views.picture(trained, seen)
    picture = Image.fromarray(shown if shown.shape[2] == 3 else shown[..., 0])
    picture.thumbnail((_SIDE, _SIDE))
    return Example(terminal(Path(file).name), view, _data_url(picture, "webp"))


def _data_url(picture: Image.Image, kind: str) -> str:
    file = io.BytesIO()
    picture.save(file, kind, quality=95)  # of a PNG there is none
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def make_answer(trained: Trained) -> Callable[..., Reply]:
    """Return (view, picture) -> Reply, compiled; without `picture` the forward pass alone is run.

    Raises UserError: a model without a map of tokens.
    """
    from vit_jax.inference import labels  # late: it needs the evaluations

    trained = dataclasses.replace(trained, variables=jax.device_put(trained.variables))
    look, forward = saliency.make_saliency(trained), make_forward(trained)
    names = _distinct([*map(terminal, trained.class_names)])
    least = labels.thresholds(trained)

    def answer(view: Num[np.ndarray, "H W C"], *, picture: bool = True) -> Reply:
        output, heat = look(jnp.asarray(view[None])) if picture else (forward(view[None]), None)
        logits = np.asarray(output.logits)
        seen = None
        if heat is not None:
            seen = overlay(_enlarge(views.picture(trained, view)), np.asarray(heat)[0])
        if trained.gives_numbers:
            return Reply([*zip(names, logits[0].tolist(), strict=True)], seen, numbers=True)
        chances = np.asarray(probabilities(logits, trained.loss))[0]
        likeliest = np.argsort(-chances, kind="stable")[:_TOP]
        below = {k for k in likeliest.tolist() if least and chances[k] < least[k]}
        shown = [f"{names[k]} (not seen)" if k in below else names[k] for k in likeliest]
        return Reply([*zip(shown, chances[likeliest].tolist(), strict=True)], seen)

    for picture in (True, False):
        answer(np.zeros((*trained.image_size, trained.channels), trained.dtype), picture=picture)
    return answer


def make_pixels_answer(trained: Trained) -> Callable[..., Reply]:
    """Return (image, picture) -> Reply of a model of pixels, compiled.

    With `picture` what is found is drawn over the image. The colours of the legend are those of the
    overlay; of depth they are the scale's two ends.
    """
    from vit_jax.figures import contact_sheet, masks  # late, as the evaluations that they need
    from vit_jax.inference import pixels

    drawn, task = pixels.make_drawn(trained), pixels.task_of(trained)
    names = [*trained.class_names]

    def answer(image: Num[np.ndarray, "H W C"], *, picture: bool = True) -> Reply:
        found, drawing = drawn(image)
        shown = [(terminal(name), value) for name, value in found][:MOST_WORDS]
        seen = _enlarge(drawing) if picture else None
        if task is pixels.PixelTask.DEPTH:
            ends = contact_sheet.colors(np.array([[0.0, 1.0]]))[0]
            return Reply(shown, seen, numbers=True, colours=(*map(_hex, ends),))
        by_class = task is pixels.PixelTask.CLASSES
        order = [names.index(name) for name, _ in found] if by_class else range(len(found))
        colours = tuple(_hex(masks.colour(k)) for k in order)
        return Reply(shown, seen, colours=colours)

    answer(np.zeros((*trained.image_size, trained.channels), trained.dtype))
    return answer


def _hex(colour: Sequence[int] | np.ndarray) -> str:
    return "#" + "".join(f"{int(x):02x}" for x in colour)


def make_words_answer(trained: Trained, pair: "Pair") -> Callable[..., Reply]:
    """Return (view, words, picture) -> Reply, compiled: how likely each word is.

    They share the probability (CLIP), or with a bias each has its own (SigLIP).

    Raises UserError: a model without a map of tokens.
    """
    from vit_jax.evals import zero_shot  # late: most models have no texts
    from vit_jax.inference import image_text, pairs

    trained = dataclasses.replace(trained, variables=jax.device_put(trained.variables))
    look, forward = saliency.make_saliency(trained), make_forward(trained)
    templates = zero_shot.templates("photo")

    def embed(texts: Sequence[str]) -> np.ndarray:
        # Always as many, so that no visitor has another program compiled.
        padded = [*texts, *[""] * (MOST_WORDS - len(texts))]
        return pairs.embed_texts(pair, padded)[: len(texts)]

    @functools.lru_cache(_KEPT)
    def vectors(words: tuple[str, ...]) -> np.ndarray:
        return zero_shot.class_vectors(embed, [(word,) for word in words], templates)

    def answer(
        view: Num[np.ndarray, "H W C"], words: tuple[str, ...], *, picture: bool = True
    ) -> Reply:
        output, heat = look(jnp.asarray(view[None])) if picture else (forward(view[None]), None)
        image = np.asarray(pairs.embed_features(pair, output.features))
        chances = image_text.probabilities(pair, image, vectors(words))[0]
        order = np.argsort(-chances, kind="stable")
        found = [(terminal(words[k]), float(chances[k])) for k in order]
        if heat is None:
            return Reply(found, None)
        return Reply(found, overlay(_enlarge(views.picture(trained, view)), np.asarray(heat)[0]))

    for picture in (True, False):
        view = np.zeros((*trained.image_size, trained.channels), trained.dtype)
        answer(view, ("a",), picture=picture)
    return answer


def _distinct(names: Sequence[str]) -> list[str]:
    """Number the names that several classes have, as two of ImageNet's do."""
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({k})" if name in twice else name for k, name in enumerate(names)]


def _enlarge(view: Num[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "P Q C"]:
    factor = max(1, _SIDE // max(view.shape[:2]))
    size = view.shape[0] * factor, view.shape[1] * factor
    return evaluation_view(view, TransformConfig(crop=Crop.RESIZE, resize=Resize.BICUBIC), size)


def title(trained: Trained) -> str:
    """Return the page's title: the variant, or the family of a model that is none; a run's step."""
    name = _variant(trained.model) or _family(trained)
    return name if trained.step is None else f"{name} · step {trained.step:,}"


def _variant(cfg: models.ModelConfig) -> str:
    """Return the named variant that has these layers; "" if there is none.

    Fields that all families have (images, classes, dtype) and rates of dropout may differ.
    """
    ours = {each.name for each in dataclasses.fields(cfg) if not each.name.endswith("_rate")}
    ours -= {each.name for each in dataclasses.fields(models.ModelConfig)}
    for name, known in models.family(cfg).variants.items():
        if all(getattr(known, field) == getattr(cfg, field) for field in ours):
            return name
    return ""


def _family(trained: Trained) -> str:
    return type(trained.model).__name__.removesuffix("Config")


def facts(trained: Trained) -> str:
    """Describe the model in a line."""
    height, width = trained.image_size
    facts = [
        _family(trained),
        f"{trees.num_params(trained.variables['params']):,} parameters",
        f"{height}x{width} pixels{', grey' if trained.channels == 1 else ''}",
    ]
    if trained.class_names:
        what = "numbers" if trained.gives_numbers else "classes"
        facts.append(f"{len(trained.class_names):,} {what}")
    if trained.step is not None and trained.ema:
        facts.append("moving average")
    return " · ".join(facts)


def write(
    trained: Trained, examples: Sequence[Example], max_upload: int, *, takes_words: bool = False
) -> str:
    """Return the page's HTML; `max_upload` is in bytes.

    With `takes_words` a visitor writes the words to choose among.
    """
    buttons = [
        f'<button type="button" data-example="{number}" title="{html(example.name)}">'
        f'<img src="{example.picture}" alt="{html(example.name)}"></button>'
        for number, example in enumerate(examples)
    ]
    template = Template(Path(__file__).with_name("page.html").read_text(encoding="utf-8"))
    return template.substitute(
        title=html(title(trained)),
        facts=html(facts(trained)),
        source=html(Path(trained.ref.partition(":")[2].partition("@")[0]).name),
        overlay="What it found" if trained.head is not None else "Where it looked",
        method=html(_caption(trained)),
        examples="\n".join(buttons),
        hidden="" if buttons else " hidden",
        max_upload=max_upload,
        answers="Words" if takes_words else "Numbers" if trained.gives_numbers else "Classes",
        no_words="" if takes_words else " hidden",
    )


def _caption(trained: Trained) -> str:
    """Return the line below the picture."""
    if trained.head is not None:
        return "What each pixel is, in the colours of the list."
    look = saliency.method(trained.model).capitalize()
    return f"{look}. The more colour, from purple to yellow, the more the model looked there."


def content_policy(page: str) -> str:
    """Return the Content-Security-Policy of a page: its one script, and no other host."""
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
