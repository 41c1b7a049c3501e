# SPDX-License-Identifier: Apache-2.0

import pytest

from tests.unit.devices.test_sharding import copied, unexplained

# The largest of each family, and sizes that 8 does not divide.
PUBLISHED = (
    *("vit_G14", "vit_7b16_dinov3", "vit_so400m14_siglip", "r50_vit_l32", "bit_r152x4"),
    *("swin_l_384", "hiera_b", "mixer_s16"),
    *("mixer_l32", "cait_m48", "convit_b_plus", "regnety_200mf", "resnet50"),
    *("convnext_xxl", "convnextv2_h"),
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_every_large_parameter_and_moment_is_sharded(name: str) -> None:
    for sizes in ({"data": 1, "fsdp": 8, "tensor": 1}, {"data": 1, "fsdp": 4, "tensor": 2}):
        assert unexplained(copied(name, sizes)) == []
