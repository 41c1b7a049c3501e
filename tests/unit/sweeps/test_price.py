# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest
from PIL import Image

from configs import vit_mu_digits
from vit_jax.cost import scale
from vit_jax.errors import UserError
from vit_jax.sweeps.price import find_device, price
from vit_jax.train import build as build_lib
from vit_jax.train.estimate import estimate_step


def test_epochs_need_the_data_and_steps_do_not(tmp_path: Path) -> None:
    cfg = vit_mu_digits.get_config()
    cfg.data.name = f"folder:{tmp_path}/none"
    with pytest.raises(UserError, match="duration='80 epochs' in steps or examples"):
        price(cfg)
    cfg.duration = "1000 steps"
    assert price(cfg).examples == 64_000


def test_what_a_config_leaves_to_the_data_is_priced_as_it_will_be(tmp_path: Path) -> None:
    for label in "abc":
        place = tmp_path / label
        place.mkdir()
        for i in range(40):
            Image.new("L", (8, 8)).save(place / f"{i}.png")
    cfg = vit_mu_digits.get_config()
    cfg.data.name, cfg.data.train_split = f"folder:{tmp_path}?split_seed=0", "train"
    cfg.model.num_classes, cfg.data.batch_size, cfg.duration = 0, 0, "auto"
    cfg.optim.warmup = "10%"
    found = price(cfg)
    assert (found.steps, found.examples) == (1000, 8000)  # an eighth of a hundred: 8 at a time
    cfg.model.num_classes, cfg.data.batch_size, cfg.duration = 3, 8, "1000 steps"
    assert price(cfg) == found
    cfg.data.name, cfg.model.num_classes = f"folder:{tmp_path}/none", 0
    with pytest.raises(UserError, match="leaves its duration, batch or classes to the data"):
        price(cfg)


def test_a_time_is_a_range_that_devices_share() -> None:
    cfg = vit_mu_digits.get_config()
    cfg.duration, cfg.optim.warmup = "100 steps", "10%"
    found = price(cfg)
    least, most = found.seconds(find_device("2e12", 8))
    assert (least, most) == pytest.approx([found.flops / (8 * 2e12)] * 2)
    # A branch that leaves its trunk at step 80 takes the last 20 steps alone.
    assert found.seconds(find_device("2e12", 8), 80) == pytest.approx((least / 5, most / 5))
    least, most = found.seconds(find_device("v5e", 1))
    assert most / least == pytest.approx(scale.SPREAD[1] / scale.SPREAD[0])
    assert found.seconds(find_device("v5e", 1), 80) == pytest.approx((least / 5, most / 5))
    # 64 digits keep no chip busy: more devices take no less time.
    assert found.seconds(find_device("v5e", 8)) == pytest.approx((least, most))
    assert least == pytest.approx(100 * scale.SPREAD[0] * 0.7e-3)


def test_a_chips_price_is_that_of_its_compiled_step() -> None:
    cfg = vit_mu_digits.get_config()
    cfg.duration, cfg.optim.warmup, cfg.data.batch_size = "100 steps", "10%", 65536
    parts = build_lib.build(cfg, 10**6)
    step = estimate_step(cfg, parts, {"data": 1, "fsdp": 1, "tensor": 1}, scale.CHIPS["H100"])
    priced = price(cfg).seconds(find_device("H100", 1))
    assert priced == pytest.approx([100 * seconds for seconds in step.range])
