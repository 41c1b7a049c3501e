# SPDX-License-Identifier: Apache-2.0
"""Vision Transformers and their relatives in JAX and Flax: one config file, one command."""

__version__ = "0.1.0"
