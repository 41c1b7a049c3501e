# SPDX-License-Identifier: Apache-2.0
"""The state of a head beside an encoder is taken apart and put together again."""

import re

from vit_jax.objectives import DepthConfig, SegmentConfig
from vit_jax.objectives.dense.pixels import apart, joined

STATE = {
    "params": {"blocks": {"kernel": 1}, "segment": {"bias": 2}},
    "batch_stats": {"segment": {"mean": 3}},
    "other": {"stem": {"mean": 4}},
}


def test_apart_and_joined() -> None:
    rest, own = apart(STATE, "segment")
    # A collection of which the encoder has nothing is none of its own.
    assert rest == {"params": {"blocks": {"kernel": 1}}, "other": {"stem": {"mean": 4}}}
    assert own == {"params": {"bias": 2}, "batch_stats": {"mean": 3}}
    assert joined(rest, own, "segment") == STATE
    assert apart(rest, "segment") == (rest, {})


def test_what_is_locked_is_all_but_the_head() -> None:
    for cfg, head in ((SegmentConfig(), "segment"), (DepthConfig(frozen=True), "depth_head")):
        assert re.search(cfg.locked, "blocks/attn/qkv/kernel")
        assert re.search(cfg.locked, f"{head}_other/kernel")
        assert not re.search(cfg.locked, f"{head}/norm/scale")
    assert DepthConfig().locked == ""
