# SPDX-License-Identifier: Apache-2.0
"""The families of models, a file each; Vision Transformers are three."""
