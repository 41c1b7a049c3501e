# SPDX-License-Identifier: Apache-2.0
"""The layers that families share, one idea a file."""
