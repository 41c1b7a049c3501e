# SPDX-License-Identifier: Apache-2.0
"""The demo page's answer to an upload, beside a plain server with timm's model, in turns.

    taskset --cpu-list 0 python -m benchmarks.serve

A client posts a JPEG of 500 x 375 over loopback, one after another on one connection, and waits for
the classes in JSON: reading, bringing to size, forward pass and answer. Client and server of a side
are one process, so that both sides pay for the same client. It needs torch, timm and [serve].
"""

import argparse
import contextlib
import http.client
import io
import json
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks import latency_sides, record, step_timm, turns
from benchmarks.train_step import EAGER, model_config
from vit_jax.models import ModelConfig

Made = tuple[dict[str, Any], Callable[[int], list[float]]]
SHARES = {"p50": 0.5, "p95": 0.95}


def photograph() -> bytes:
    """Return a JPEG of 500 x 375, of smooth shapes and some noise, as a photograph has."""
    rows, columns = np.mgrid[:375, :500] / 100.0
    waves = [np.sin(rows * k + 1) + np.cos(columns * (4 - k)) for k in (1, 2, 3)]
    noise = np.random.default_rng(0).normal(scale=8, size=(375, 500, 3))
    pixels = np.stack(waves, -1) * 60 + 128 + noise
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "jpeg", quality=90)
    return file.getvalue()


def ours(model: ModelConfig) -> Made:
    """Serve by the demo page's own app."""
    import dataclasses
    import functools

    from vit_jax.data import Crop, TransformConfig
    from vit_jax.demo import app, page

    names = tuple(f"class {k}" for k in range(model.num_classes))
    trained = dataclasses.replace(
        latency_sides.trained(model),
        class_names=names,
        transform=TransformConfig(crop=Crop.CENTER, crop_ratio=0.875),
    )
    served = app.make_app(
        page.write(trained, [], 2**20),
        functools.partial(page.read_view, trained),
        page.make_answer(trained),
        [],
        host="127.0.0.1",
        max_upload=2**20,
    )
    return _served(served, "/predict")


def timm(
    model: ModelConfig, threads: int, wait_policy: str, mkl: bool = False, compiled: bool = False
) -> Made:
    """Serve timm's model by a route that reads by Pillow and timm's own transform."""
    torch, _ = step_timm.start(threads, wait_policy, mkl)
    net = step_timm.create(model, "").eval()
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route
    from timm.data import create_transform  # pyright: ignore[reportMissingImports]

    transform: Any = create_transform((3, 224, 224), crop_pct=0.875)
    net = step_timm.frozen(net) if compiled else net
    names = [f"class {k}" for k in range(model.num_classes)]

    def answer(body: bytes) -> list[dict[str, Any]]:
        with torch.inference_mode():
            pixels = transform(Image.open(io.BytesIO(body)).convert("RGB"))[None]
            chances, classes = net(pixels).softmax(-1)[0].topk(5)
        found = zip(classes.tolist(), chances.tolist(), strict=True)
        return [{"name": names[k], "probability": chance} for k, chance in found]

    async def predict(request: Request) -> JSONResponse:
        body = await request.body()
        return JSONResponse({"classes": await run_in_threadpool(answer, body)})

    return _served(Starlette(routes=[Route("/predict", predict, methods=["POST"])]), "/predict")


def _served(app: Any, path: str) -> Made:
    """Serve an app in a thread; a turn is a number of requests, and returns the seconds of each."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    settings: dict[str, Any] = {"log_config": None, "log_level": "critical", "ws": "none"}
    settings["timeout_keep_alive"] = 3600  # the connection waits for the other sides' turns
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    port, body = listening.getsockname()[1], photograph()
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask() -> float:
        start = time.perf_counter()
        connection.request("POST", path, body)
        answer = connection.getresponse()
        found = json.loads(answer.read())
        took = time.perf_counter() - start
        if answer.status != 200 or len(found["classes"]) != 5:
            raise RuntimeError(f"status {answer.status}: {found}")
        return took

    for _ in range(5):
        ask()
    return {}, lambda count: [ask() for _ in range(count)]


def quantile(seconds: Sequence[float], share: float) -> float:
    """Return the time within which that share of the requests is answered."""
    return float(np.quantile(seconds, share))


def rows_of(
    variant: str,
    mine: Sequence[Sequence[float]],
    theirs: dict[str, list[list[list[float]]]],
    tried: dict[str, str],
    load: float,
) -> list[record.Row]:
    """Return a row a quantile and peer, of each round's requests; the fastest setting counts."""
    rows = []
    for peer, settings in theirs.items():
        for name, share in SHARES.items():
            own = [quantile(r, share) for r in mine]
            best = [min(quantile(r, share) for r in of) for of in zip(*settings, strict=True)]
            ratios = [a / b for a, b in zip(own, best, strict=True)]
            rows.append(
                record.Row(
                    work=f"demo page with {variant}, a JPEG's answer, {name}",
                    unit="s",
                    ours=statistics.median(own),
                    peer=f"plain server of {peer}",
                    peer_value=statistics.median(best),
                    ratio=statistics.median(ratios),
                    ratio_range=(min(ratios), max(ratios)),
                    peer_settings=tried[peer],
                    load=load,
                )
            )
    return rows


def measure(variant: str, rounds: int, requests: int) -> list[record.Row]:
    """Measure one model's page beside the plain server, eager and compiled."""
    model, settings = model_config(variant, "float32"), step_timm.settings()
    last = [*settings][-1]
    peers: dict[str, dict[str, dict[str, Any]]] = {
        EAGER: settings,
        "timm torch.compile": {last: {**settings[last], "compiled": True}},
    }
    with contextlib.ExitStack() as stack:

        def side(make: Any, **options: Any) -> turns.Side:
            return stack.enter_context(turns.Side(make, model=model, **options))

        sides = {peer: [side(timm, **o) for o in of.values()] for peer, of in peers.items()}
        flat = [side(ours), *(each for some in sides.values() for each in some)]
        load = os.getloadavg()[0]
        done: Any = turns.alternate(flat, rounds, requests)
        mine, *others = done
        theirs = {peer: [others.pop(0) for _ in some] for peer, some in sides.items()}
    return rows_of(variant, mine, theirs, {p: "; ".join(of) for p, of in peers.items()}, load)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve")
    parser.add_argument("--variant", nargs="+", default=["vit_ti16", "vit_s16"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=50, help="of each side in each round")
    parser.add_argument("--out", type=Path, default=record.RESULTS)
    args = parser.parse_args(argv)
    rows = [row for name in args.variant for row in measure(name, args.rounds, args.requests)]
    record.report(rows, args.out, turns.installed("torch", "timm", "starlette", "uvicorn"))


if __name__ == "__main__":
    main()
