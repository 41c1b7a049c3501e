# SPDX-License-Identifier: Apache-2.0
"""The benchmark of the demo page asks a real server, and a round's fastest peer counts."""

import io

import pytest
from PIL import Image

from benchmarks import serve
from benchmarks.train_step import model_config

pytest.importorskip("uvicorn")


def test_the_page_answers_a_photograph_with_its_likeliest_classes() -> None:
    assert Image.open(io.BytesIO(serve.photograph())).size == (500, 375)
    _, turn = serve.ours(model_config("vit_mu_8x8", "float32"))  # it raises for another answer
    took = turn(3)
    assert len(took) == 3
    assert all(seconds > 0 for seconds in took)


def test_rows_are_medians_of_rounds_beside_the_fastest_setting() -> None:
    mine = [[1.0] * 9 + [2.0], [3.0] * 10]
    slow, fast = [[4.0] * 10, [4.0] * 10], [[2.0] * 10, [6.0] * 10]
    p50, p95 = serve.rows_of("vit", mine, {"timm eager": [slow, fast]}, {"timm eager": "a; b"}, 0.5)
    assert (p50.work, p50.unit) == ("demo page with vit, a JPEG's answer, p50", "s")
    assert (p50.ours, p50.peer_value, p50.peer) == (2.0, 3.0, "plain server of timm eager")
    assert p50.ratio_range == (0.5, 0.75)
    assert p50.ratio == 0.625
    assert p95.ratio_range == pytest.approx((3 / 4, 1.55 / 2))
