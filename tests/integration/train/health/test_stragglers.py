# SPDX-License-Identifier: Apache-2.0
"""Times are gathered on any mesh; a run that names a slow one: tests/faults/test_lost_host.py."""

import jax
import numpy as np
from jax.sharding import Mesh

from vit_jax.devices import sharding
from vit_jax.devices.sharding import MeshConfig
from vit_jax.train.health import stragglers


def test_the_order_of_the_runs_devices_is_of_no_matter() -> None:
    tidy = sharding.make_mesh(MeshConfig())
    back_to_front = Mesh(tidy.devices[::-1], tidy.axis_names, axis_types=tidy.axis_types)
    with jax.set_mesh(back_to_front):
        gathered = stragglers._gather(np.array([1.0, 2.0], np.float32))
    np.testing.assert_array_equal(gathered, [[1.0, 2.0]])
