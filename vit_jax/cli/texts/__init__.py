# SPDX-License-Identifier: Apache-2.0
"""The verbs of models of images and texts: search, zero-shot, retrieval, train-tokenizer."""
