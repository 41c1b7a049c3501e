# SPDX-License-Identifier: Apache-2.0
"""Runs here are not drawn."""

from tests.undrawn import undrawn  # noqa: F401
