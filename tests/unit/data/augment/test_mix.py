# SPDX-License-Identifier: Apache-2.0
import jax
import jax.numpy as jnp
import pytest

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
    "fields, message",
    [
        ({"mixup_alpha": -0.1}, "mixup_alpha=-0.1 must be at least 0; 0 is off"),
        ({"cutmix_alpha": -1.0}, "cutmix_alpha=-1.0 must be at least 0; 0 is off"),
        ({"prob": 0.5}, "prob=0.5 has no effect without mixup_alpha or cutmix_alpha"),
        ({"per_example": True}, "per_example=True has no effect"),
        ({"partner": Partner.REVERSED}, "partner=reversed has no effect"),
        ({"mixup_alpha": 1.0, "switch_prob": 0.3}, "switch_prob=0.3 has no effect without both"),
        ({**BOTH, "prob": 0.0}, "prob=0.0 must be above 0 and at most 1"),
        ({**BOTH, "prob": 1.1}, "prob=1.1 must be above 0 and at most 1"),
        ({**BOTH, "switch_prob": 1.0}, "switch_prob=1.0 must be above 0 and below 1; for one"),
        ({**BOTH, "switch_prob": 0.0}, "switch_prob=0.0 must be above 0 and below 1; for one"),
    ],
)
def test_a_setting_out_of_range_or_without_effect_is_refused(fields, message):
    with pytest.raises(UserError, match=f"data.mix.{message}"):
        check(DataConfig(mix=MixConfig(**fields)))


def test_settings_that_act_are_not_refused():
    check(DataConfig())
    cfg = MixConfig(**BOTH, prob=0.5, switch_prob=0.8, per_example=True, partner=Partner.REVERSED)
    check(DataConfig(mix=cfg))
