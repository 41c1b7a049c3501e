# SPDX-License-Identifier: Apache-2.0
"""Metrics of pixels, segments and boxes in numpy, and the evaluators that walk a split for them."""
