# SPDX-License-Identifier: Apache-2.0
"""The commands: `main.py` and `vit_jax VERB`."""
