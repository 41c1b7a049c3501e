# SPDX-License-Identifier: Apache-2.0
"""Programs compiled ahead of time for accelerators that are not here, and what their text says."""
