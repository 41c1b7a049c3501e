# SPDX-License-Identifier: Apache-2.0
"""The version of the package, which needs no import to be read."""

__version__ = "0.2.0"
