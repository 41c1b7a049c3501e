# SPDX-License-Identifier: Apache-2.0
"""The image files and datasets of the unit tests."""

from tests.unit.data.conftest import folder, photo, tfds_dir  # noqa: F401
