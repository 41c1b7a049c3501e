# SPDX-License-Identifier: Apache-2.0
"""How a command line becomes values: flags, options, models and groups by name."""
