# SPDX-License-Identifier: Apache-2.0
"""Captions as rows of token ids, as the weights that read them were trained with."""
