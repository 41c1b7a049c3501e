# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from configs import vit_mu_digits
from vit_jax.errors import UserError
from vit_jax.sweeps.price import find_device, price


def test_epochs_need_the_data_and_steps_do_not(tmp_path: Path) -> None:
    cfg = vit_mu_digits.get_config()
    cfg.data.name = f"folder:{tmp_path}/none"
    with pytest.raises(UserError, match="duration='80 epochs' in steps or examples"):
        price(cfg)
    cfg.duration = "1000 steps"
    assert price(cfg).examples == 64_000


def test_a_time_is_a_range_that_devices_share() -> None:
    cfg = vit_mu_digits.get_config()
    cfg.duration, cfg.optim.warmup = "100 steps", "10%"
    found = price(cfg)
    least, most = found.seconds(find_device("v5e", 8))
    assert least == pytest.approx(found.flops / (8 * 0.45 * 197e12))
    assert most == pytest.approx(found.flops / (8 * 0.27 * 197e12))
    # A branch that leaves its trunk at step 80 takes the last 20 steps alone.
    assert found.seconds(find_device("v5e", 8), 80) == pytest.approx((least / 5, most / 5))
