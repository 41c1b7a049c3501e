# SPDX-License-Identifier: Apache-2.0
"""The commands: `main.py` and `python -m vit_jax VERB`."""
