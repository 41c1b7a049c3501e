# SPDX-License-Identifier: Apache-2.0
"""Programs compiled ahead of time for accelerators that are not here, and readers of their text."""
