# SPDX-License-Identifier: Apache-2.0
"""`vit_jax serve --from=...`: a page that classifies images a visitor drops on it."""

import dataclasses
import functools
import importlib.util
import ipaddress
import signal
import socket
import sys
import threading
import time
from typing import Any

from vit_jax.cli.parsing import model_options, options
from vit_jax.cli.parsing.model_options import ModelOptions
from vit_jax.cli.parsing.options import flag
from vit_jax.errors import UserError, install
from vit_jax.inference import image_text, images
from vit_jax.inference.trained import Trained, of_one_size, read_weights
from vit_jax.process import signals

_CLOSING = 5  # seconds for answers that are under way


@dataclasses.dataclass(kw_only=True)
class Serve(ModelOptions):
    """Shows a page in the browser: drop an image, see its classes and where the model looked.

    A model of images and texts chooses among words that the visitor writes, instead of classes.
    Needs starlette and uvicorn, which the extra [serve] brings: pip install 'vitjax[serve]'

      vit_jax serve --from=runs/vit_mu_digits
      vit_jax serve --from=npz:ViT-B_16.npz --model=vit_b16_384 --port=8000

    Ctrl-C ends it. Uploads are in memory alone, and only until they are answered.
    """

    examples: tuple[str, ...] = flag((), "images on the page: files, folders, globs", "FILES")
    tokenizer: str = model_options.tokenizer()
    port: int = flag(7860, "of the page; 0 takes a free one", least=0, most=65535)
    host: str = flag("127.0.0.1", "127.0.0.1: this machine may open it; 0.0.0.0: all", "ADDRESS")
    public_url: str = flag(
        "", "of a proxy that asks --host for the page, such as https://demo.example.com", "URL"
    )
    max_upload_mb: int = flag(10, "the largest file that is taken", least=1, most=256)


def serve(given: Serve, found: Trained) -> None:
    """Serve the page until Ctrl-C."""
    if not all(map(importlib.util.find_spec, ("starlette", "uvicorn"))):
        raise UserError(f"the page needs starlette and uvicorn: {install('serve')}")
    from vit_jax.demo import app

    public = app.read_public_url(given.public_url)
    with _listen(given.host, given.port) as listening:
        bound = listening.getsockname()[0]
        host = bound if bound == "0.0.0.0" else given.host  # "" and "0" are all addresses too
        made = _make_app(given, found, host, public)
        _serve(made, host, listening, public)


def _make_app(given: Serve, found: Trained, host: str, public: str) -> Any:
    """Return the ASGI app, its model compiled."""
    from vit_jax.demo import app, page

    found = of_one_size(found)
    files = images.expand(given.examples, sys.stdin, found.reading.bands)
    examples = [page.read_example(found, file) for file in files]
    takes_words = found.head is None and not found.model.num_classes and image_text.has_texts(found)
    if given.tokenizer and not takes_words:
        raise UserError(f"--tokenizer is of both towers, and {found.ref} is shown without words")
    print(f"reading {found.ref} and compiling", flush=True)
    if takes_words:
        found, pair = image_text.read(found)
        answer: Any = page.make_words_answer(found, pair)
    elif found.head is not None:
        from vit_jax.inference import dense  # late: few models are of pixels

        found = dense.read_weights(found)
        answer = page.make_pixels_answer(found)
    else:
        found = read_weights(found)
        answer = page.make_answer(found)
    max_upload = given.max_upload_mb * 2**20
    return app.make_app(
        page.write(found, examples, max_upload, takes_words=takes_words),
        functools.partial(page.read_view, found),
        answer,
        [example.view for example in examples],
        host=host,
        max_upload=max_upload,
        public=public,
        takes_words=takes_words,
    )


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens there; a port of 0 takes a free one.

    Raises UserError: the port is taken, or the address is not this machine's.
    """
    try:
        return socket.create_server((host, port))
    except OSError as error:
        what = f"--port={port}: {error.strerror}; choose another, or --port=0 for a free one"
        if isinstance(error, socket.gaierror) or error.errno == 99:
            what = f"--host={host} is no IPv4 address of this machine; try 127.0.0.1"
        raise UserError(what) from None


def _serve(app: Any, host: str, listening: socket.socket, public: str = "") -> None:
    """Serve the page until Ctrl-C or SIGTERM."""
    import uvicorn

    ended = threading.Event()
    signals.heed(dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: ended.set()))
    port = listening.getsockname()[1]
    # Requests are not logged, nor their errors: the sender gets them.
    settings = {"log_config": None, "log_level": "critical", "ws": "none"}
    settings |= {"proxy_headers": False, "server_header": False, "timeout_graceful_shutdown": 1}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise UserError(f"the page could not be started on {host}, port {port}")
        time.sleep(0.01)
    if not _is_loopback(host):
        print(f"warning: --host={host} lets everyone who reaches this machine use the page")
    shown = "localhost" if host == "0.0.0.0" else host
    by = f", and by your proxy at {public}/" if public else ""
    print(f"the page is at http://{shown}:{port}/{by} (Ctrl-C ends it)", flush=True)
    ended.wait()
    server.should_exit = True
    thread.join(_CLOSING)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


main = options.verb(Serve, serve, model_options.read)
