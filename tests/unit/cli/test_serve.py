# SPDX-License-Identifier: Apache-2.0
"""The server of the demo page: it ends by a signal, and says whom it is open to."""

import os
import signal
from typing import Any

import pytest

from vit_jax.cli import serve


@pytest.mark.parametrize("host, warned", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_page_is_warned_of(
    host: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "lifespan.startup.complete"})
        os.kill(os.getpid(), signal.SIGTERM)
        await receive()
        print("closed")
        await send({"type": "lifespan.shutdown.complete"})

    listening = serve._listen(host, 0)
    port = listening.getsockname()[1]
    before = [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        serve._serve(app, host, listening, "https://demo.example.com" if warned else "")
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    out = capsys.readouterr().out
    proxy = ", and by your proxy at https://demo.example.com/" if warned else ""
    assert out.endswith(f":{port}/{proxy} (Ctrl-C ends it)\nclosed\n")
    assert (f"warning: --host={host}" in out) == warned
