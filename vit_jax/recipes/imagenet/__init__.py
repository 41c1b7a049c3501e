# SPDX-License-Identifier: Apache-2.0
"""Recipes that train from scratch by the labels of ImageNet: one file a paper or codebase."""
