# SPDX-License-Identifier: Apache-2.0
"""A restart on other devices says in one line what changed."""

import jax

from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.train import metadata


def mesh(data: int, fsdp: int) -> jax.sharding.Mesh:
    return sharding.make_mesh(MeshConfig(data=data, fsdp=fsdp), jax.devices()[: data * fsdp])


def test_a_restart_says_what_changed() -> None:
    eight, four = mesh(4, 2), mesh(4, 1)
    before = metadata.describe_devices(eight)
    assert metadata.other_devices({"devices": before}, eight, 32) == ""
    assert (
        metadata.other_devices({}, four, 32) == ""
    )  # a checkpoint of before this was written down
    assert metadata.other_devices({"devices": before}, four, 32) == (
        "now on 4 x cpu (data=4), before on 8 x cpu (data=4, fsdp=2): 8 examples a device, 4 before"
    )
    hosts = {**before, "kind": "NVIDIA H100", "processes": 2}
    assert metadata.other_devices({"devices": hosts}, eight, 32) == (
        "now on 8 x cpu (data=4, fsdp=2), "
        "before on 8 x NVIDIA H100 of 2 processes (data=4, fsdp=2): 4 examples a device as before"
    )
