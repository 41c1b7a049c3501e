# SPDX-License-Identifier: Apache-2.0
"""The demo page: a visitor's image, the classes it may be of, and where the model looked."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt8

from vit_jax import trees
from vit_jax.data import Crop, Resize, TransformConfig, evaluation_view
from vit_jax.errors import UserError
from vit_jax.figures.overlay import overlay
from vit_jax.inference import images
from vit_jax.inference.forward import probabilities
from vit_jax.inference.page_guard import App, Guard
from vit_jax.inference.page_requests import Call
from vit_jax.inference.trained import Trained
from vit_jax.process.escapes import markdown, terminal
from vit_jax.visual import saliency

_TOP = 5  # classes shown
_SIDE = 448  # pixels that a small image is enlarged to, for its heat map to be smooth
_HEIGHT = 400  # of the upload on the page, of which 40 are its buttons
_DELETE = (60, 600)  # every minute, the uploads older than ten

_CSS = """
.gradio-container { max-width: 1240px !important; margin: 0 auto !important; }
.gradio-container, .gradio-container main { width: 100% !important; }
#image img, #overlay img { width: 100%; height: 100%; object-fit: contain; padding-top: 44px; }
#problem * { color: var(--error-text-color); }
"""


def app(page: Any, host: str, uploads: Path, max_upload: int, public: str = "") -> App:
    """Return the page, from `build`, as an ASGI app with its guard before it; see `Guard`."""
    import fastapi
    import gradio as gr

    font = ["system-ui", "sans-serif"]  # fonts of the system, so none is fetched
    mounted = gr.mount_gradio_app(
        fastapi.FastAPI(openapi_url=None),
        page,
        "/",
        server_name=host,
        max_file_size=max_upload,
        show_error=False,
        ssr_mode=False,
        enable_monitoring=False,
        run_history=False,
        footer_links=[],
        theme=gr.themes.Soft(font=font, font_mono=font),
        css=_CSS,
    )
    return Guard(mounted, host, uploads, max_upload, calls(page), public)


def calls(page: Any) -> dict[int, Call]:
    """Return what the functions of a page may be called with, by their numbers."""
    import gradio as gr

    def kind(component: Any) -> int | None:
        if isinstance(component, gr.Dataset):
            return len(component.raw_samples or ())
        assert isinstance(component, gr.Image), "an input that the guard does not know"
        return None

    return {
        number: Call(call.queue, tuple(kind(component) for component in call.inputs))
        for number, call in page.fns.items()
    }


class Answer(NamedTuple):
    """The model's answer for an image."""

    classes: dict[str, float]  # probability by name, of all classes
    overlay: UInt8[np.ndarray, "H W 3"]  # what it saw, in grey, under the map of where it looked


def make_answer(trained: Trained) -> Callable[[Path], Answer]:
    """Return file -> Answer, compiled.

    Raises UserError: a model without a map of tokens; from the function, no image.
    """
    look = saliency.make_saliency(trained)
    size, names = trained.image_size, _distinct([*map(terminal, trained.class_names)])

    def run(view: UInt8[np.ndarray, "H W C"]) -> Answer:
        output, heat = look(jnp.asarray(view[None]))
        chances = np.asarray(probabilities(output.logits, trained.loss))[0]
        classes = dict(zip(names, chances.tolist(), strict=True))
        return Answer(classes, overlay(_enlarge(view), np.asarray(heat)[0]))

    def answer(file: Path) -> Answer:
        image = images.read_image(file, trained.channels, trained.reading)
        return run(evaluation_view(image, trained.transform, size))

    run(np.zeros((*size, trained.channels), np.uint8))
    return answer


def _distinct(names: Sequence[str]) -> list[str]:
    """Number the names that several classes have, as two of ImageNet's do."""
    twice = {name for name in names if names.count(name) > 1}
    return [f"{name} ({k})" if name in twice else name for k, name in enumerate(names)]


def _enlarge(view: UInt8[np.ndarray, "H W C"]) -> UInt8[np.ndarray, "P Q C"]:
    factor = max(1, _SIDE // max(view.shape[:2]))
    size = view.shape[0] * factor, view.shape[1] * factor
    return evaluation_view(view, TransformConfig(crop=Crop.RESIZE, resize=Resize.BICUBIC), size)


def title(trained: Trained) -> str:
    """Name the model by its run or file."""
    return Path(trained.ref.partition(":")[2].partition("@")[0]).name


def facts(trained: Trained) -> str:
    """Describe the model in a line."""
    height, width = trained.image_size
    facts = [
        type(trained.model).__name__.removesuffix("Config"),
        f"{trees.num_params(trained.variables['params']):,} parameters",
        f"{height}x{width} pixels{', grey' if trained.channels == 1 else ''}",
        f"{len(trained.class_names):,} classes",
    ]
    if trained.step is not None:
        facts.append(f"step {trained.step:,}" + (", moving average" if trained.ema else ""))
    return " · ".join(facts)


def build(trained: Trained, answer: Callable[[Path], Answer], examples: Sequence[str]) -> Any:
    """Return the page, a `gradio.Blocks`; a visitor may choose from image files, the examples."""
    import gradio as gr

    def respond(upload: Mapping[str, Any] | None) -> tuple[Any, Any, Any, Any]:
        if upload is None:  # cleared, by the visitor or below: the answer stays
            return gr.skip(), None, None, gr.skip()
        try:
            found = answer(Path(upload["path"]))
        except UserError as error:
            return None, None, None, gr.Markdown(_complaint(upload, error), visible=True)
        return gr.skip(), found.classes, found.overlay, gr.Markdown(visible=False)

    with gr.Blocks(
        title=title(trained), analytics_enabled=False, delete_cache=_DELETE, fill_width=True
    ) as page:
        gr.Markdown(f"# {markdown(title(trained))}\n{markdown(facts(trained))}")
        with gr.Row():
            with gr.Column(min_width=280):
                image = gr.Image(
                    label="Image",
                    sources=["upload", "clipboard"],
                    height=_HEIGHT,
                    buttons=[],
                    elem_id="image",
                )
                _files_only(image)
                problem = gr.Markdown(visible=False, elem_id="problem")
            with gr.Column(min_width=280):
                classes = gr.Label(label="Classes", num_top_classes=_TOP, elem_id="classes")
            with gr.Column(min_width=280):
                where = gr.Image(
                    label="Where it looked",
                    format="png",
                    interactive=False,
                    height=_HEIGHT - 40,
                    buttons=["download"],
                    elem_id="overlay",
                )
                gr.Markdown(
                    f"{saliency.method(trained.model).capitalize()}: the lighter, the more."
                )
        if examples:
            gr.Examples(list(examples), image, cache_examples=False)
        image.change(
            respond,
            image,
            [image, classes, where, problem],
            preprocess=False,  # the file as it came: gradio would decode and convert it
            api_visibility="private",
        )
    return page.queue(max_size=16, default_concurrency_limit=1)


def _files_only(image: Any) -> None:
    """Refuse a web address in place of an upload, which gradio would fetch."""
    store = image.async_move_resource_to_block_cache

    async def store_file(path: str | Path | None) -> str | None:
        if "://" in str(path):
            raise PermissionError(f"{path} is no upload; web addresses are not fetched")
        return await store(path)

    image.async_move_resource_to_block_cache = store_file


def _complaint(upload: Mapping[str, Any], error: UserError) -> str:
    name = Path(upload.get("orig_name") or upload["path"]).name
    message = str(error).replace(str(upload["path"]), name)
    return f"**No image to look at.** {markdown(message)}"
