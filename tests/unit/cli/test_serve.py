# SPDX-License-Identifier: Apache-2.0
"""The demo page: the real command, stopped by a real signal, looked at in a real browser."""

import asyncio
import dataclasses
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from tests.unit.weights import runs
from vit_jax import inference, models
from vit_jax.checkpoints import CheckpointConfig
from vit_jax.checkpoints.checkpointer import Checkpointer
from vit_jax.cli import serve
from vit_jax.config import saved as config_json
from vit_jax.config.tree import Config
from vit_jax.data import Crop, TransformConfig
from vit_jax.evals import ClassifyEval
from vit_jax.inference import page
from vit_jax.models.layers.pool import Pool
from vit_jax.process import startup

MODEL = models.variant(
    "vit_mu16",
    patch=(8, 8),
    image_size=(32, 32),
    num_classes=3,
    dim=8,
    depth=1,
    num_heads=1,
    mlp_dim=8,
    class_token=False,
    pool=Pool.GAP,
    scan_unroll=1,
)
NAMES = ["red", "green", "blue"]


def color_params() -> dict[str, Any]:
    """Make a ViT by hand that names the colour of the one patch that is not black, and looks there.

    A token is its patch's mean colour; every query is the same, and answers to whatever has colour.
    """
    params = runs.make_state(MODEL, 0).params
    flat = {"/".join(path): np.zeros(x.shape, np.float32) for path, x in _leaves(params)}
    color = np.arange(3)
    flat["patch_embed/kernel"][:, :, color, color] = 1 / 64
    for name in ("blocks/norm1", "blocks/norm2", "norm"):
        flat[f"{name}/scale"] += 1
    flat["blocks/attn/qkv/bias"][0, 0] = 10  # of the query
    flat["blocks/attn/qkv/kernel"][0, color, 8] = 1  # of the key
    flat["head/kernel"][color, color] = 20
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *path, last = name.split("/")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last] = jnp.asarray(value)
    return tree


def _leaves(tree: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs") / "colors"
    cfg = Config(model=MODEL)
    cfg.data.mean, cfg.data.std = (0.0,), (1.0,)
    cfg.evals = {"val": ClassifyEval(transform=TransformConfig(crop=Crop.RESIZE))}
    metadata = {"config": config_json.to_json(cfg), "class_names": NAMES}
    checkpoints = Checkpointer(place / "checkpoints", CheckpointConfig())
    state = dataclasses.replace(runs.make_state(MODEL, 1234), params=color_params())
    checkpoints.save(1234, state, metadata=metadata, metrics={})
    checkpoints.wait()
    return place


@pytest.mark.parametrize("host, warned", [("127.0.0.1", False), ("0.0.0.0", True)])
def test_an_open_page_is_warned_of(
    host: str, warned: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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
        serve._serve(serve._end(), app, host, listening)
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    out = capsys.readouterr().out
    assert out.endswith(f":{port}/ (Ctrl-C ends it)\nclosed\n")
    assert (f"warning: --host={host}" in out) == warned


def test_a_signal_before_the_page_is_up_leaves_no_folder(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: Any) -> None:
        assert len(list(tmp_path.iterdir())) == 1
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(serve.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(startup, "configure", lambda: None)
    monkeypatch.setattr(serve, "_only_here", lambda uploads: None)
    monkeypatch.setattr(page, "make_answer", lambda found: None)
    monkeypatch.setattr(page, "build", build)
    before = [(n, signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert serve.main(["vit_jax serve", f"--from={run}", "--port=0"]) == 0
    finally:
        for number, handler in before:
            signal.signal(number, handler)
    assert list(tmp_path.iterdir()) == []


def test_a_web_address_is_no_upload() -> None:
    class Image:
        async def async_move_resource_to_block_cache(self, path: str) -> str:
            return f"stored {path}"

    image = Image()
    page._files_only(image)
    store = image.async_move_resource_to_block_cache
    assert asyncio.run(store("/tmp/a.png")) == "stored /tmp/a.png"
    for address in ("http://example.com/a.png", "HTTPS://example.com"):
        with pytest.raises(PermissionError, match="not fetched"):
            asyncio.run(store(address))


def test_classes_of_one_name_are_told_apart() -> None:
    assert page._distinct(["crane", "dog", "crane"]) == ["crane (0)", "dog", "crane (2)"]


def test_what_the_page_says_of_a_run(run: Path) -> None:
    found = inference.load(str(run))
    assert page.title(found) == "colors"
    assert page.title(dataclasses.replace(found, ref="npz:dir/ViT-B_16.npz")) == "ViT-B_16.npz"
    assert page.title(dataclasses.replace(found, ref=f"ckpt:{run}@best")) == "colors"
    assert page.facts(found).endswith("32x32 pixels · 3 classes · step 1,234")
    average = dataclasses.replace(found, ema=True)
    assert page.facts(average).endswith("step 1,234, moving average")
    assert "step" not in page.facts(dataclasses.replace(found, step=None))
