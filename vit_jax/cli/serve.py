# SPDX-License-Identifier: Apache-2.0
"""`python -m vit_jax serve --from=...`: a page that classifies images a visitor drops on it."""

import importlib.util
import ipaddress
import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags

from vit_jax import signals, startup
from vit_jax.cli import flags as cli_flags
from vit_jax.cli import trained_flags
from vit_jax.errors import UserError

_CLOSING = 5  # seconds for answers that are under way
_HELP = f"""usage: python -m vit_jax serve --from=WEIGHTS [flags]

Shows a page in the browser: drop an image, see its likeliest classes and where the model looked.
Needs gradio: pip install -e ".[serve]"

{trained_flags.HELP}
  --examples=FILES        images to choose from on the page: files, folders and globs, by commas
  --port=N                of the page (default: 7860); 0 takes a free one
  --host=ADDRESS          who may open it: 127.0.0.1, this machine alone (default); 0.0.0.0, all
  --public_url=URL        how visitors call a proxy that serves the page, https://demo.example.com;
                          --host stays the address that the proxy asks
  --max_upload_mb=N       the largest file that is taken (default: 10), at most 256

  python -m vit_jax serve --from=runs/vit_mu_digits
  python -m vit_jax serve --from=npz:ViT-B_16.npz --model=vit_b16_384 --port=8000

Ctrl-C ends it. Uploads are deleted ten minutes after, and at the end."""


def main(argv: Sequence[str]) -> int:
    """Run the command line (program name first) and return the exit status."""
    if any(argument in ("-h", "--help", "-help") for argument in argv[1:]):
        print(_HELP)
        return 0

    def command() -> int:
        values = flags.FlagValues()
        trained_flags.define(values)
        flags.DEFINE_list("examples", [], "See --help.", flag_values=values)
        flags.DEFINE_integer("port", 7860, "See --help.", 0, 65535, flag_values=values)
        flags.DEFINE_string("host", "127.0.0.1", "See --help.", flag_values=values)
        flags.DEFINE_string("public_url", "", "See --help.", flag_values=values)
        flags.DEFINE_integer("max_upload_mb", 10, "See --help.", 1, 256, flag_values=values)
        found, _ = trained_flags.read(argv, values, positional=False)
        if importlib.util.find_spec("gradio") is None:
            raise UserError('the page needs gradio: pip install -e ".[serve]"')
        setting: Any = {name: values[name].value for name in ("host", "port", "max_upload_mb")}
        host, port = _address(setting["host"], setting["port"])
        startup.configure()
        from vit_jax.inference import images, page, page_requests, read_weights

        public = page_requests.read_public_url(values["public_url"].value or "")

        examples = images.expand(values["examples"].value or [], sys.stdin)
        for file in examples:
            images.read_image(file, found.channels)
        print(f"reading {found.ref} and compiling", flush=True)
        found = read_weights(found)
        answer = page.make_answer(found)
        told = _end()  # before there is a folder that a signal would leave behind
        with tempfile.TemporaryDirectory(prefix="vit_jax_serve_") as uploads:
            _only_here(uploads)
            blocks = page.build(found, answer, examples)
            if not told.is_set():
                largest = setting["max_upload_mb"] * 2**20
                app = page.app(blocks, host, Path(uploads), largest, public)
                _serve(told, app, host, port, public)
        return 0

    return cli_flags.run(command, argv)


def _address(host: str, port: int) -> tuple[str, int]:
    """Return the host, as 0.0.0.0 where it is all addresses, and the port, a free one for 0.

    Raises:
        UserError: it is taken, or the address is none of this machine.
    """
    try:
        with socket.socket(socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            bound, port = probe.getsockname()
            return (bound if bound == "0.0.0.0" else host), port
    except OSError as error:
        if isinstance(error, socket.gaierror) or error.errno == 99:
            raise UserError(
                f"--host={host} is no IPv4 address of this machine; try 127.0.0.1"
            ) from None
        raise UserError(
            f"--port={port}: {error.strerror}; choose another, or --port=0 for a free one"
        ) from None


def _only_here(uploads: str) -> None:
    """Keep gradio's files in `uploads`, and gradio off the network; call before importing it."""
    for name in [name for name in os.environ if name.startswith("GRADIO_")]:
        del os.environ[name]  # they open directories, share links and ports
    os.environ |= {
        "GRADIO_TEMP_DIR": uploads,
        "GRADIO_ANALYTICS_ENABLED": "False",
    }


def _end() -> threading.Event:
    """Return what Ctrl-C and SIGTERM set from now on."""
    told = threading.Event()
    signals.heed(dict.fromkeys((signal.SIGINT, signal.SIGTERM), lambda *_: told.set()))
    return told


def _serve(told: threading.Event, app: Any, host: str, port: int, public: str = "") -> None:
    """Serve the page until it is told to end."""
    import uvicorn  # with gradio

    try:
        listening = socket.create_server((host, port))
    except OSError as error:
        raise UserError(f"--port={port}: {error}") from None
    # Requests are not logged, nor what is wrong with them: that is told to who sent them.
    server = uvicorn.Server(
        uvicorn.Config(
            app,
            log_config=None,
            log_level="critical",
            ws="none",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
    )
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
    told.wait()
    server.should_exit = True
    thread.join(_CLOSING)


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv))
