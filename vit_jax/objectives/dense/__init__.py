# SPDX-License-Identifier: Apache-2.0
"""Objectives whose targets are of pixels: classes, segments, depth."""
