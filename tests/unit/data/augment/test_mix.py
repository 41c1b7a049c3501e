# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import pytest

from tests.refusals import EFFECT, RANGE, refused_by
from vit_jax.data import DataConfig, MixConfig, Partner, check
from vit_jax.data.augment.mix import mix, normalize
from vit_jax.errors import UserError


def test_normalize_refuses_three_means_for_grey_images():
    with pytest.raises(UserError, match=r"mean=.* has 3 values, the images have 1 channels"):
        normalize(jnp.zeros((1, 2, 2, 1), jnp.uint8), (0.1, 0.2, 0.3), (0.5,))


BOTH = {"mixup_alpha": 0.8, "cutmix_alpha": 1.0}


def test_nothing_to_mix_changes_nothing():
    images, rows = jnp.ones((2, 1, 1, 3)), jnp.eye(2)
    mixed, target = mix(jax.random.key(0), images, rows, MixConfig())
    assert mixed is images
    assert target is rows


@pytest.mark.parametrize(
    "fields, code, field",
    [
        ({"mixup_alpha": -0.1}, RANGE, "mixup_alpha"),
        ({"cutmix_alpha": -1.0}, RANGE, "cutmix_alpha"),
        ({"prob": 0.5}, EFFECT, "prob"),
        ({"per_example": True}, EFFECT, "per_example"),
        ({"partner": Partner.REVERSED}, EFFECT, "partner"),
        ({"mixup_alpha": 1.0, "switch_prob": 0.3}, EFFECT, "switch_prob"),
        ({**BOTH, "prob": 0.0}, RANGE, "prob"),
        ({**BOTH, "prob": 1.1}, RANGE, "prob"),
        ({**BOTH, "switch_prob": 1.0}, RANGE, "switch_prob"),
        ({**BOTH, "switch_prob": 0.0}, RANGE, "switch_prob"),
    ],
)
def test_a_setting_out_of_range_or_without_effect_is_refused(fields, code, field):
    with refused_by(code, f"data.mix.{field}"):
        check(DataConfig(mix=MixConfig(**fields)))


def test_settings_that_act_are_not_refused():
    check(DataConfig())
    cfg = MixConfig(**BOTH, prob=0.5, switch_prob=0.8, per_example=True, partner=Partner.REVERSED)
    check(DataConfig(mix=cfg))
