# SPDX-License-Identifier: Apache-2.0
"""How this process starts, waits, speaks and stops."""
