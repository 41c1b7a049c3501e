# SPDX-License-Identifier: Apache-2.0
"""Published recipes as functions that return whole configs: one file a paper or codebase."""
