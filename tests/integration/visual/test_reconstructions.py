# SPDX-License-Identifier: Apache-2.0
"""`visualize --reconstruct` draws what a masked autoencoder's run predicts, and refuses others."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.unit.test_configs import CONFIGS, load, shrink
from vit_jax.cli.visualize import main
from vit_jax.figures.contact_sheet import Tile
from vit_jax.train.loop import fit
from vit_jax.visual import reconstructions


@pytest.fixture(scope="module", params=["mae", "mpp"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    cfg = shrink(load(CONFIGS / "unlabelled_digits.py", request.param))
    cfg.duration, cfg.evals, cfg.checkpoint.keep_best = "2 steps", {}, 0
    place = tmp_path_factory.mktemp(request.param) / request.param
    fit(cfg, place)
    return place


def test_a_row_of_three_for_each_image(
    run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    drawn: list[list[Tile]] = []
    titles: list[str] = []

    def render(rows: list[list[Tile]], title: str) -> bytes:
        drawn.extend(rows)
        titles.append(title)
        return b"png"

    monkeypatch.setattr(reconstructions, "render", render)
    rng = np.random.default_rng(0)
    for name in "ab":
        Image.fromarray(rng.integers(0, 200, (16, 16), np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "c.png").write_bytes(b"no image")
    files = [str(tmp_path / f"{name}.png") for name in "abc"]
    out = tmp_path / "out"
    status = main(["visualize", "--reconstruct", f"--from={run}", f"--out={out}", *files])
    printed = capsys.readouterr()
    if run.name == "mpp":
        assert status == 2
        assert "learned by MaskedPatchConfig; give a run of MaeConfig" in printed.err
        return
    assert status == 1  # one is broken
    assert "skipped" in printed.err
    assert str(out / "reconstructions.png") in printed.out
    assert [[tile.caption for tile in row] for row in drawn] == [
        [f"{name}.png", "75% hidden", "predicted there"] for name in "ab"
    ]
    assert titles == [f"{run.name}: reconstructions"]
    monkeypatch.setattr(reconstructions, "_MOST", 1)
    main(["visualize", "--reconstruct", f"--from={run}", f"--out={out}", *files])
    assert titles[1:] == [f"{run.name}: reconstructions, the first 1 of 3 images"]
    image, masked, filled = (tile.image for tile in drawn[0])
    grey = (masked == 128).all(axis=-1)
    assert grey.reshape(2, 8, 2, 8).all(axis=(1, 3)).sum() == 3  # three patches of four
    np.testing.assert_array_equal(filled[~grey], image[~grey])
    assert (filled[grey] != image[grey]).any()
